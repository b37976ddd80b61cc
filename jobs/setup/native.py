"""The one native part: the file calls of a commit in one call (`tables/store/publish.c`). Standard library only.

It is optional: without a C compiler, or where it cannot be loaded, the same calls are made one by one in Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["build_library", "find_compiler", "is_built", "library_path"]

_PROJECT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = _PROJECT / "tables" / "store" / "publish.c"
FOLDER: Final = _PROJECT / ".venv" / "lib"
_NAME: Final = "deltamq-publish"
_FLAGS: Final = ("-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")


def library_path(source: Path = SOURCE, folder: Path = FOLDER) -> Path:
    """Return where the library of this very source belongs; `tables.store.native` loads it from there."""
    return folder / f"{_NAME}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"


def find_compiler() -> str | None:
    """Return the path of the C compiler, `CC` if it is set; None if there is none, or this is not Linux."""
    return shutil.which(os.environ.get("CC") or "cc") if sys.platform == "linux" else None


def is_built(source: Path = SOURCE, folder: Path = FOLDER) -> bool:
    """Return whether the library is there and can be loaded on this machine."""
    try:
        ctypes.CDLL(str(library_path(source, folder)))
    except OSError:
        return False
    return True


def build_library(compiler: str, source: Path = SOURCE, folder: Path = FOLDER) -> str | None:
    """Compile the library and remove those of earlier sources; return the compiler's message if it fails."""
    path = library_path(source, folder)
    temp = path.with_suffix(f".{os.getpid()}.tmp")
    command = [compiler, *_FLAGS, "-o", str(temp), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        temp.unlink(missing_ok=True)
        return done.stderr.strip() or f"{compiler} ended with {done.returncode}"
    temp.replace(path)
    for earlier in folder.glob(f"{_NAME}-*.so"):
        if earlier != path:
            earlier.unlink(missing_ok=True)
    return None
