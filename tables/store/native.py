"""The steps of `tables.store.publish` in one native call (`publish.c`), where it could be compiled.

A thread releases Python's lock at each of the fifteen system calls of a commit, and in a busy service it waits longer
to get it back than for the call itself. So the files that commits will need are made and opened in one call, too.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from deltamq.tables.compiled import library_path
from deltamq.tables.store.file_system import CommitStep, Failed, Publication

_SOURCE: Final = Path(__file__).with_name("publish.c")
#: Most outcomes that are taken at once.
_OUTCOMES: Final = 64
#: A dead file to write to, with its descriptor; -1 if it is not open yet.
OpenFile: TypeAlias = tuple[str, int]


class NativePublication:
    """The file calls of a commit into `file` and `log`, if given, which are closed then.

    A file that is not open yet is deleted if another process has it open, and a new file takes its place.
    """

    __slots__ = ("_library", "_wanted", "arguments")

    def __init__(
        self, library: ctypes.CDLL, wanted: Publication, file: OpenFile | None, log: OpenFile | None, *, sync: bool
    ) -> None:
        self._library = library
        self._wanted = wanted
        file_dead, file_fd = file or ("", -1)
        log_dead, log_fd = log or ("", -1)
        #: The native function's arguments, which live as long as this object.
        self.arguments = (
            os.fsencode(wanted.file),
            os.fsencode(os.path.dirname(wanted.file)),
            *_memory(wanted.file_data),
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
        )

    def here(self) -> Failed | None:
        """Make the calls in one native call on this thread; return what failed."""
        error = ctypes.c_int()
        step = self._library.deltamq_publish(*self.arguments, ctypes.byref(error))
        return self.failed(step, error.value)

    async def aside(self) -> Failed | None:
        """Make the calls on a thread of Python, where no native threads could be started."""
        return await asyncio.to_thread(self.here)

    def failed(self, step: int, error: int) -> Failed | None:
        """Return the step that failed and its error; None if none did."""
        if not step:
            return None
        wanted, failed = self._wanted, CommitStep(step)
        path = {CommitStep.WRITE_FILE: wanted.file, CommitStep.LINK: wanted.name, CommitStep.SETTLE: wanted.name}.get(
            failed, wanted.temp
        )
        # the number chooses the class: FileExistsError for EEXIST
        return Failed(failed, OSError(error, os.strerror(error), path))


class NativePool:
    """Threads without Python that make the file calls of commits, while one thread of Python goes on.

    Only that thread uses the pool. `fd` becomes readable when outcomes are there.
    """

    def __init__(self, threads: int) -> None:
        """Start the threads; raise `OSError` if the library cannot be loaded, or the system gives no threads."""
        self._library = _declared(ctypes.CDLL(str(library_path(_SOURCE))))
        # What takes a microsecond keeps Python's lock.
        self._holding_lock = _declared(ctypes.PyDLL(str(library_path(_SOURCE))))
        fd = ctypes.c_int()
        pool: int | None = self._library.deltamq_pool_start(threads, ctypes.byref(fd))
        if not pool:
            raise OSError("no native threads")
        self._pool = pool
        self.fd = fd.value
        self._under_way: dict[int, NativePublication] = {}
        self._count = 0
        self._results = (ctypes.c_int64 * _OUTCOMES)(), (ctypes.c_int * _OUTCOMES)(), (ctypes.c_int * _OUTCOMES)()

    def begin(self, publication: NativePublication) -> int:
        """Start a publication; return the number of its outcome."""
        self._count += 1
        if self._holding_lock.deltamq_pool_begin(self._pool, self._count, *publication.arguments):
            raise MemoryError
        # The interpreter may end before the threads do: what they read stays until they have read it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(publication))
        self._under_way[self._count] = publication
        return self._count

    def outcomes(self) -> list[tuple[int, Failed | None]]:
        """Return the outcomes so far, at least one if `fd` is readable: number, and what failed."""
        numbers, steps, errors = self._results
        count = self._holding_lock.deltamq_pool_done(self._pool, numbers, steps, errors, _OUTCOMES)
        outcomes = []
        for number, step, error in zip(numbers[:count], steps, errors, strict=False):
            assert number in self._under_way, "each publication that was begun has one outcome"
            publication = self._under_way.pop(number)
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(publication))
            outcomes.append((number, publication.failed(step, error)))
        return outcomes

    def stop(self) -> None:
        """End the threads after the publications under way."""
        self._library.deltamq_pool_stop(self._pool)


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
    """Return the bytes' address, as ctypes takes it, and their number."""
    return (data, len(data)) if isinstance(data, bytes) else (data.address, data.size)


@cache
def native_library() -> ctypes.CDLL | None:
    """Return the compiled library; None where there is none, or none that this machine can load."""
    try:
        return _declared(ctypes.CDLL(str(library_path(_SOURCE))))
    except OSError:
        return None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    text, memory = ctypes.c_char_p, ctypes.c_void_p
    size, number = ctypes.c_size_t, ctypes.c_int
    publication: list[Any] = [
        *(text, text, memory, size, text, number),
        *(text, memory, size, text, number),
        *(text, text, text, number),
    ]
    library.deltamq_publish.argtypes = [*publication, ctypes.POINTER(number)]
    library.deltamq_publish.restype = number
    library.deltamq_create.argtypes = [text, number, number, ctypes.POINTER(number), ctypes.POINTER(number)]
    library.deltamq_create.restype = number
    library.deltamq_open_dead.argtypes = [text, number, ctypes.POINTER(number)]
    library.deltamq_open_dead.restype = None
    library.deltamq_pool_start.argtypes = [number, ctypes.POINTER(number)]
    library.deltamq_pool_start.restype = memory
    library.deltamq_pool_begin.argtypes = [memory, ctypes.c_int64, *publication]
    library.deltamq_pool_begin.restype = number
    library.deltamq_pool_done.argtypes = [memory, memory, memory, memory, number]
    library.deltamq_pool_done.restype = number
    library.deltamq_pool_stop.argtypes = [memory]
    library.deltamq_pool_stop.restype = None
    return library
