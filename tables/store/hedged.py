"""Calls of an object store that take far longer than others are asked again beside the first one.

    call    -----------------------------------------------------x  cancelled
    again            ---------> answer
            |--------| patience: far longer than almost all calls take

A store answers one call in some thousands after seconds, or never (a lost connection, a server that restarts), and a
commit waits for it, with all that are behind it, and the lease as well. The first call may still be carried out, at any
time. So only what may be done twice at any time is asked here: reads, a file under a name that is never used again, a
commit that recognises itself. A file that is overwritten or deleted is not: an old content would come back.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Least and most seconds before a call is asked again; each time it is three times as long.
_PATIENCE_MIN_S: Final = 0.25
_PATIENCE_MAX_S: Final = 5.0
_LONGER: Final = 3
#: Most calls that are under way; the oldest one ends before a further one begins.
_MOST: Final = 3
#: Seconds after which a store that answers none of them is given up, or four times the patience.
_GIVE_UP_S: Final = 20.0
#: Mean and mean deviation until calls were answered.
_FIRST_S: Final = (0.1, 0.05)
#: The share of the newest call in the means.
_NEWEST: Final = 1 / 8
#: How many times the mean deviation a call may be late.
_DEVIATIONS: Final = 8
#: Bytes a second that a slow connection carries: large files are waited for longer.
_SLOW_BYTES: Final = 2_000_000


class Pace:
    """How long calls of one kind take, in seconds: the mean and the mean deviation of the last ones."""

    __slots__ = ("_deviation_s", "_mean_s")

    def __init__(self) -> None:
        self._mean_s, self._deviation_s = _FIRST_S

    def note(self, took_s: float) -> None:
        """Count a call that was answered."""
        self._deviation_s += _NEWEST * (abs(took_s - self._mean_s) - self._deviation_s)
        self._mean_s += _NEWEST * (took_s - self._mean_s)

    def patience_s(self, nbytes: int) -> float:
        """Return after how many seconds a call that carries so many bytes is asked again."""
        usual_s = self._mean_s + _DEVIATIONS * self._deviation_s
        return min(max(2 * usual_s, _PATIENCE_MIN_S), _PATIENCE_MAX_S) + nbytes / _SLOW_BYTES


async def hedged(ask: Callable[[], Awaitable[T]], pace: Pace, nbytes: int = 0) -> T:
    """Return the first answer of a call that is asked again and again when it is late.

    Raises
    ------
    TimeoutError
        No call was answered for a long time. Other errors are those of the last call, if all have failed.
    """
    wait_s = pace.patience_s(nbytes)
    until_s = time.monotonic() + max(_GIVE_UP_S, 4 * wait_s)
    #: The calls under way, each with the time at which it was asked.
    asked: dict[asyncio.Future[T], float] = {}
    try:
        while (now_s := time.monotonic()) < until_s:
            if len(asked) == _MOST:
                asked.pop(oldest := next(iter(asked)))
                oldest.cancel()
            asked[asyncio.ensure_future(ask())] = now_s
            again_s = min(now_s + wait_s, until_s)
            while done := await _some(asked, again_s - time.monotonic()):
                for answer in done:
                    began_s = asked.pop(answer)
                    if answer.exception() is None:
                        pace.note(time.monotonic() - began_s)
                    if answer.exception() is None or not asked:
                        return answer.result()
            wait_s = min(_LONGER * wait_s, max(wait_s, _PATIENCE_MAX_S))
        raise TimeoutError("the store did not answer")
    finally:
        for late in asked:
            late.cancel()


async def _some(asked: Iterable[asyncio.Future[T]], wait_s: float) -> set[asyncio.Future[T]]:
    """Return the calls that have ended, at least one, or none if none does within the time."""
    return (await asyncio.wait(asked, timeout=max(wait_s, 0.0), return_when=asyncio.FIRST_COMPLETED))[0]


class BlockingLoop:
    """An event loop on a thread of its own, for callers that block; it is made when it is needed, anew after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return its result; blocking."""
        return asyncio.run_coroutine_threadsafe(work, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            if self._pid not in (0, os.getpid()):
                self._lock = threading.Lock()  # another thread may have held it in the moment of the fork
            with self._lock:
                if self._loop is None or self._pid != os.getpid():
                    loop = asyncio.new_event_loop()
                    threading.Thread(target=loop.run_forever, name="mq-store", daemon=True).start()
                    self._loop, self._pid = loop, os.getpid()
        assert self._loop is not None, "made above"
        return self._loop
