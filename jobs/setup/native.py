"""The native parts: a commit's small file and its file calls, Kafka's records to columns. Standard library only.

They are optional: without a C compiler, or where they cannot be loaded, Python does the same.
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

_PROJECT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = (
    _PROJECT / "tables" / "store" / "publish.c",
    _PROJECT / "tables" / "delta" / "small_parquet.c",
    _PROJECT / "api" / "kafka" / "records" / "decode.c",
    _PROJECT / "api" / "kafka" / "records" / "encode.c",
)
FOLDER: Final = _PROJECT / ".venv" / "lib"
_FLAGS: Final = ("-O2", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror")


def library_path(source: Path, folder: Path = FOLDER) -> Path:
    """Return where the library of this very source belongs; `tables.compiled` knows the same."""
    return folder / f"{_stem(source)}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"


def _stem(source: Path) -> str:
    return f"deltamq-{source.stem}"


def find_compiler() -> str | None:
    """Return the path of the C compiler, `CC` if it is set; None if there is none, or this is not Linux."""
    return shutil.which(os.environ.get("CC") or "cc") if sys.platform == "linux" else None


def is_built(source: Path, folder: Path = FOLDER) -> bool:
    """Return whether the library is there and can be loaded on this machine."""
    try:
        ctypes.CDLL(str(library_path(source, folder)))
    except OSError:
        return False
    return True


def build_library(compiler: str, source: Path, folder: Path = FOLDER) -> str | None:
    """Compile the library and remove those of earlier sources; return the compiler's message if it fails."""
    path = library_path(source, folder)
    temp = path.with_suffix(f".{os.getpid()}.tmp")
    command = [compiler, *_FLAGS, "-o", str(temp), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        temp.unlink(missing_ok=True)
        return done.stderr.strip() or f"{compiler} ended with {done.returncode}"
    temp.replace(path)
    for earlier in folder.glob(f"{_stem(source)}-*.so"):
        if earlier != path:
            earlier.unlink(missing_ok=True)
    return None
