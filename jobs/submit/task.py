"""`deltamq jobs` for what calls a function and waits for it to return, as a wheel task of Databricks does.

A command ends its process with an exit code, and some of them take any such end for a failure. This one returns when
all went well, and raises when it did not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobs.cli import jobs_command

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `deltamq jobs` with the given arguments, by default those of the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    jobs_command(given, prog_name="deltamq jobs", standalone_mode=False)
