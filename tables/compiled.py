"""The compiled parts of DeltaMQ: C sources beside their modules, and each one's library beside its source.

    install (of the wheel or of a checkout) --> cc, if there is one --> tables/store/publish.c
                                                                        tables/store/publish-<hash of it>.so

The parts are optional: without a compiler, or where a library cannot be loaded, Python does the same. A library's name
has the hash of its source and of the headers beside it, so one of another source is never
loaded. Standard library only: builds import this file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

#: Every C source, below the folder that has the packages.
SOURCES: Final = (
    "tables/store/publish.c",
    "tables/delta/small_parquet.c",
    "tables/typed/avro.c",
    "tables/typed/json.c",
    "tables/typed/protobuf.c",
    "api/kafka/records/decode.c",
    "api/kafka/records/encode.c",
)
_FLAGS: Final = ("-O2", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror")


def library_path(source: Path) -> Path:
    """Return where the library of this very source belongs; raise `OSError` if the source cannot be read."""
    texts = [source.read_bytes(), *(header.read_bytes() for header in sorted(source.parent.glob("*.h")))]
    return source.with_name(f"{source.stem}-{hashlib.sha256(b''.join(texts)).hexdigest()[:16]}.so")


def find_compiler() -> str | None:
    """Return the path of the C compiler, `CC` if it is set; None if there is none, or this is not Linux."""
    return shutil.which(os.environ.get("CC") or "cc") if sys.platform == "linux" else None


def compile_sources(folder: Path, compiler: str) -> list[Path]:
    """Compile each source below `folder` that has no library yet, and remove libraries of earlier sources; return all.

    Raises
    ------
    ChildProcessError
        The compiler failed; the message is the compiler's.
    """
    return [_compiled(folder / source, compiler) for source in SOURCES]


def _compiled(source: Path, compiler: str) -> Path:
    path = library_path(source)
    if not path.exists():
        temp = path.with_suffix(f".{os.getpid()}.tmp")
        command = [compiler, *_FLAGS, "-o", str(temp), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            temp.unlink(missing_ok=True)
            raise ChildProcessError(done.stderr.strip() or f"{compiler} ended with {done.returncode}")
        temp.replace(path)
    for earlier in source.parent.glob(f"{source.stem}-*.so"):
        if earlier != path:
            earlier.unlink(missing_ok=True)
    return path
