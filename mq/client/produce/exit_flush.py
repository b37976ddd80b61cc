"""The end of a program that did not close its producers: what is queued is sent, within a bound (SPEC SEND-9).

The threads that send are daemons, which the interpreter ends in the middle of their work; `atexit` comes before that. A
process that is killed, or ends by `os._exit` as children of `multiprocessing` do, flushes nothing.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import time
import weakref
from typing import Final

from deltamq.mq.client.http.forks import in_child
from deltamq.mq.client.produce.buffer import Buffer

log = logging.getLogger("deltamq.client")

EXIT_S: Final = 30.0
#: pyarrow imports this module when it first encodes, which at the end of a program is too late.
_IMPORTED: Final = concurrent.futures.ThreadPoolExecutor
_buffers: Final[weakref.WeakSet[Buffer]] = weakref.WeakSet()


def flushed_at_exit(buffer: Buffer) -> None:
    """Wait at the end of the program until this buffer is empty."""
    _buffers.add(buffer)


def flush_all(within_s: float = EXIT_S) -> None:
    """Wait at most `within_s` until all buffers are empty, and log how many messages are left."""
    deadline = time.monotonic() + within_s
    left = sum(0 if buffer.wait_empty(deadline) else buffer.messages for buffer in list(_buffers))
    if left:
        log.error(
            "event=ended_unsent messages=%d detail='the program ended %.0f s after its last send without close(): "
            "these may be lost'",
            left,
            within_s,
        )


atexit.register(flush_all)
# What was queued before a fork is the parent's.
in_child(_buffers.clear)
