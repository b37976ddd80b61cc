"""What Spark's processes write on standard error, as events of a log whose lines are JSON.

    JVM, its Python workers ──stderr──> pipe ──> {"time": ..., "event": "spark_wrote", "text": "..."}

The JVM has log4j, its workers have Python's tracebacks, and both have a runtime's own warnings: no setting gives them
all one form. They write to the standard error that the JVM was started with, so that is a pipe to this process, whose
own standard error stays what it was: what it says as it dies is not lost in a pipe that nobody reads.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger("deltamq.jobs")

_STDERR: Final = 2
_READ_BYTES: Final = 1 << 16


@contextmanager
def jvm_lines_logged() -> Iterator[None]:
    """Log what the processes that the block starts write on standard error, for as long as they live."""
    kept = os.dup(_STDERR)
    reading, writing = os.pipe()
    threading.Thread(target=_log, args=(reading, kept), name="spark-stderr", daemon=True).start()
    os.dup2(writing, _STDERR)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)


def _log(reading: int, kept: int) -> None:
    begun = b""
    while data := os.read(reading, _READ_BYTES):
        whole, end, begun = (begun + data).rpartition(b"\n")
        # What was written at once stays together: a traceback is one event.
        _write(whole + end, kept)
    _write(begun, kept)
    os.close(reading)
    os.close(kept)


def _write(text: bytes, kept: int) -> None:
    """Log lines; those of this process's own log, which come here while the JVM starts, are passed on as they are."""
    others = []
    for line in text.splitlines():
        if line.startswith(b'{"'):
            os.write(kept, line + b"\n")
        elif line.strip():
            others.append(line.decode("utf-8", "replace"))
    if others:
        log.warning("event=spark_wrote text=%r", "\n".join(others))
