"""Which release of the package runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def release() -> str:
    """Return the version of the installed package; "0" if it is run from a source tree."""
    try:
        return version("deltamq")
    except PackageNotFoundError:
        return "0"
