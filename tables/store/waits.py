"""How long each thread has waited for the store, without using the interpreter.

The pool of commit threads needs this: of threads that compute in Python only one makes progress, however many
there are, and each hand-over of the interpreter's lock costs; threads that wait for a disk or a network help each
other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Waited(threading.local):
    seconds = 0.0


_waited = _Waited()


def waited_s() -> float:
    """Return the seconds that this thread has waited for stores since it began."""
    return _waited.seconds


def add_wait(seconds: float) -> None:
    """Count seconds for which this thread waited."""
    _waited.seconds += seconds


@contextmanager
def waiting() -> Iterator[None]:
    """Count the time that the block takes."""
    began = time.perf_counter()
    try:
        yield
    finally:
        add_wait(time.perf_counter() - began)
