"""`deltamq jobs` for callers that run a function and wait for it to return, such as a wheel task of Databricks.

A command ends its process with an exit code, which some of these callers take for a failure in any case. This function
returns on success and raises on failure.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from deltamq.jobs.cli.jobs_group import jobs_command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `deltamq jobs`; None: with the arguments of the command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    jobs_command(given, prog_name="deltamq jobs", standalone_mode=False)
