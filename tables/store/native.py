"""The steps of `tables.store.publish` in one native call (`publish.c`), where `make setup` could compile it.

A thread gives Python's lock away at each of the fifteen system calls of a commit, and in a busy service it waits longer
to get it back than for the call itself. So the files that commits will need are made and opened in one call, too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa

from tables.compiled import library_path
from tables.store.file_system import Failed, Publication, Step
from tables.store.waits import add_wait

__all__ = ["OpenFile", "create_natively", "native_library", "open_dead_natively", "publish_natively"]

_SOURCE: Final = Path(__file__).with_name("publish.c")
#: A dead file to write to, with its descriptor; -1 if it is not open yet.
OpenFile: TypeAlias = tuple[str, int]


def publish_natively(
    library: ctypes.CDLL, wanted: Publication, file: OpenFile | None, log: OpenFile | None, *, sync: bool
) -> Failed | None:
    """Publish in one call into `file` and `log`, if given, which are closed then; return what failed.

    Of those that are not open yet, one that another process has open is deleted, and a new file takes its place.
    """
    error, took = ctypes.c_int(), ctypes.c_double()
    file_at, file_bytes = _memory(wanted.file_data)
    file_dead, file_fd = file or ("", -1)
    log_dead, log_fd = log or ("", -1)
    step = library.deltamq_publish(
        os.fsencode(wanted.file),
        os.fsencode(os.path.dirname(wanted.file)),
        file_at,
        file_bytes,
        os.fsencode(file_dead),
        file_fd,
        os.fsencode(wanted.temp),
        wanted.log,
        len(wanted.log),
        os.fsencode(log_dead),
        log_fd,
        os.fsencode(wanted.name),
        os.fsencode(wanted.head),
        os.fsencode(os.path.dirname(wanted.name)),
        sync,
        ctypes.byref(error),
        ctypes.byref(took),
    )
    add_wait(took.value)
    if not step:
        return None
    failed = Step(step)
    path = {Step.WRITE_FILE: wanted.file, Step.LINK: wanted.name, Step.SETTLE: wanted.name}.get(failed, wanted.temp)
    # the number alone chooses the class: FileExistsError for EEXIST
    return Failed(failed, OSError(error.value, os.strerror(error.value), path))


def create_natively(library: ctypes.CDLL, paths: Sequence[str], kept: int) -> tuple[list[int], int, OSError | None]:
    """Create files; return the descriptors of the first `kept`, how many were created, and why no more were."""
    opened, error = (ctypes.c_int * kept)(), ctypes.c_int()
    made = library.deltamq_create(_joined(paths), len(paths), kept, opened, ctypes.byref(error))
    failed = None if made == len(paths) else OSError(error.value, os.strerror(error.value), paths[made])
    return opened[:made], made, failed


def open_dead_natively(library: ctypes.CDLL, paths: Sequence[str]) -> list[int]:
    """Open dead files; return their descriptors, -1 for one that another process has open, which is deleted."""
    opened = (ctypes.c_int * len(paths))()
    library.deltamq_open_dead(_joined(paths), len(paths), opened)
    return opened[:]


def _joined(paths: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def _memory(data: pa.Buffer | bytes) -> tuple[int | bytes, int]:
    """Return where bytes lie, as ctypes takes it, and how many they are."""
    return (data, len(data)) if isinstance(data, bytes) else (data.address, data.size)


@cache
def native_library() -> ctypes.CDLL | None:
    """Return the compiled library; None where there is none, or none that this machine can load."""
    try:
        library = ctypes.CDLL(str(library_path(_SOURCE)))
    except OSError:
        return None
    text, memory = ctypes.c_char_p, ctypes.c_void_p
    size, number = ctypes.c_size_t, ctypes.c_int
    library.deltamq_publish.argtypes = [
        *(text, text, memory, size, text, number),
        *(text, memory, size, text, number),
        *(text, text, text, number, ctypes.POINTER(number), ctypes.POINTER(ctypes.c_double)),
    ]
    library.deltamq_publish.restype = number
    library.deltamq_create.argtypes = [text, number, number, ctypes.POINTER(number), ctypes.POINTER(number)]
    library.deltamq_create.restype = number
    library.deltamq_open_dead.argtypes = [text, number, ctypes.POINTER(number)]
    library.deltamq_open_dead.restype = None
    return library
