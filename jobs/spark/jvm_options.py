"""Options for the JVM that the next session starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Spark's launcher passes this variable to the driver's JVM; no Spark setting reaches it in time.
_VARIABLE: Final = "SPARK_SUBMIT_OPTS"


@contextmanager
def jvm_options(*options: str) -> Iterator[None]:
    """Until the block ends, start JVMs with these options, too."""
    before = os.environ.get(_VARIABLE)
    # the launcher divides the text at unquoted spaces, and a path may have spaces
    os.environ[_VARIABLE] = " ".join([*filter(None, [before]), *map(_quoted, options)])
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def _quoted(option: str) -> str:
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if " " in option or escaped != option else option
