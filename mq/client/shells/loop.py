"""The shell of an event loop: its calls wait for the loop, and what is in the background are tasks.

A client belongs to the loop in which it is first used, and to this process. When the loop ends, as `asyncio.run` does
by cancelling all tasks, nothing new is begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from ssl import SSLContext
from typing import Any, Final, TypeVar

from deltamq.mq.client.shells.forks import Birthplace
from deltamq.mq.client.shells.loop_transport import LoopTransport
from deltamq.mq.client.shells.shell import Outcome, Work
from deltamq.mq.errors import Refused

T = TypeVar("T")

log = logging.getLogger("deltamq.client")

#: Seconds that cancelled tasks may take to end.
_CANCELLED_S: Final = 2.0
#: Some milliseconds of queueing: fewer make smaller requests, more let the service wait.
_CALLS_IN_TURN: Final = 1_000


class LoopCondition:
    """A condition of coroutines: there is no lock, since nothing else runs between two of their waits."""

    __slots__ = ("_waiters",)

    lock = contextlib.nullcontext()

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def until(self, attempt: Callable[[], T], timeout_s: float | None = None) -> T:
        """Attempt until it succeeds, or the time is over; see `Condition`."""
        result = attempt()
        if result or (timeout_s is not None and timeout_s <= 0):
            return result
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        over = False

        def end() -> None:
            nonlocal over
            over = True
            _wake(waiter)

        timer = None if timeout_s is None else loop.call_later(timeout_s, end)
        try:
            while True:
                self._waiters.append(waiter)
                try:
                    await waiter
                finally:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)
                result = attempt()
                if result or over:
                    return result
                waiter = loop.create_future()
        finally:
            if timer is not None:
                timer.cancel()

    def notify(self) -> None:
        """Let every `until` attempt again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class LoopWorkers:
    """Up to `most` tasks, each for one piece of work after another."""

    def __init__(self, most: int, name: str) -> None:
        assert most >= 1
        self._most = most
        self._name = name
        self._queued: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._ended = False

    def submit(self, work: Work) -> None:
        """Run the work soon. Once the loop is ending, nothing runs any more."""
        if self._ended:
            return
        self._queued.append(work)
        if self._running < self._most:
            self._running += 1
            task = asyncio.get_running_loop().create_task(self._run(), name=self._name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            while self._queued:
                await self._one(self._queued.popleft())
        finally:
            # Here, and not when the task is done: what is submitted between the two would wait for nobody.
            self._running -= 1

    async def _one(self, work: Work) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            self._ended = True
            self._queued.clear()
            raise
        except Exception:
            # Work resolves its own futures; an exception that still escapes must not end the task.
            log.exception("event=client_task_failed")

    async def close(self) -> None:
        """Cancel the tasks that still run, and wait for their end, but not for ever."""
        self._ended = True
        await _cancelled(self._tasks)


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait for their end, but not for ever."""
    others = {task for task in tasks if task is not asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_CANCELLED_S)


class TimeOuts:
    """Futures that get a `TimeoutError` if they are not done in time.

    There is one timer for all: nearly every future is done before, and a timer for each would cost more than its wait.
    """

    def __init__(self) -> None:
        self._ends: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: When the timer looks: at the first end of all, or before.
        self._next = math.inf

    def add(self, future: asyncio.Future[Any], end: float) -> None:
        """Wait for the future until `end`, of `time.monotonic`."""
        self._ends[future] = end
        if end < self._next:
            self._set(future.get_loop(), end)

    def remove(self, future: asyncio.Future[Any]) -> None:
        """Wait for the future no longer."""
        self._ends.pop(future, None)

    def _set(self, loop: asyncio.AbstractEventLoop, end: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = end
        self._timer = loop.call_later(end - time.monotonic(), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._next = None, math.inf
        now = time.monotonic()
        over = sorted((end, index, future) for index, (future, end) in enumerate(self._ends.items()) if end <= now)
        for _, _, future in over:
            del self._ends[future]
            if not future.done():
                future.set_exception(TimeoutError())
        if self._ends:
            self._set(loop, min(self._ends.values()))


_OTHER_LOOP: Final = "another_event_loop"


class LoopShell:
    """The shell of clients on an event loop."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._birthplace = Birthplace(kind)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Most plain functions of the user that are called at once: as many as tasks that may call them.
        self._threads_max = 1
        self._threads: ThreadPoolExecutor | None = None
        self._calls_in_turn = 0
        self._time_outs = TimeOuts()

    def check(self) -> None:
        """Refuse a call outside an event loop, from another loop than the first call's, or in the child of a fork."""
        self._birthplace.check()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError as error:
            raise Refused(
                f"{self._kind} works on an event loop: call it in a coroutine", code="no_event_loop", field="loop"
            ) from error
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise Refused(
                f"this {self._kind} belongs to another event loop: make one in each", code=_OTHER_LOOP, field="loop"
            )

    #: Seconds of a monotonic clock; the function itself, since it is called some times for each send.
    now = staticmethod(time.monotonic)

    def condition(self) -> LoopCondition:
        """Return a new condition."""
        return LoopCondition()

    def workers(self, most: int, name: str) -> LoopWorkers:
        """Return up to `most` tasks."""
        self._threads_max = max(self._threads_max, most)
        return LoopWorkers(most, name)

    def spawn(self, name: str, work: Work) -> None:
        """Run the work in a task of its own."""
        task = asyncio.get_running_loop().create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def future(self) -> asyncio.Future[Any]:
        """Return a future of the loop."""
        return (self._loop or asyncio.get_running_loop()).create_future()

    async def outcome(self, future: Outcome[T], deadline: float) -> T:
        """Wait for the result of a future that nobody else waits for: it is given up with the wait."""
        assert isinstance(future, asyncio.Future)
        if not future.done():
            self._time_outs.add(future, deadline)
            try:
                await future
            finally:
                self._time_outs.remove(future)
        settled: T = future.result()
        return settled

    async def call(self, function: Callable[[Any], object], argument: object) -> object:
        """Await a coroutine function; call another one in one of `threads_max` threads."""
        try:
            if inspect.iscoroutinefunction(function):
                return await function(argument)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._threads_max, "deltamq-handler")
            context = contextvars.copy_context()
            result = await asyncio.get_running_loop().run_in_executor(self._threads, context.run, function, argument)
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError as error:
            if self.gives_up(error):
                raise
            raise RuntimeError("what the handler waited for was cancelled") from error

    def gives_up(self, error: BaseException) -> bool:
        """Return whether the running task is being cancelled."""
        task = asyncio.current_task()
        return isinstance(error, asyncio.CancelledError) and task is not None and bool(task.cancelling())

    async def close(self) -> None:
        """Cancel what runs in the background, and end the threads as they become idle."""
        await _cancelled(self._tasks)
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def others(self) -> Coroutine[Any, Any, None] | None:
        """Let all that is ready run once for so many calls: requests go while a task queues messages without end."""
        self._calls_in_turn += 1
        if self._calls_in_turn <= _CALLS_IN_TURN:
            return None
        self._calls_in_turn = 1
        return asyncio.sleep(0)

    async def blocking(self, function: Callable[[], T]) -> T:
        """Call the function in a thread."""
        return await asyncio.to_thread(function)

    def transport(self, scheme: str, host: str, port: int, ssl_context: SSLContext | None) -> LoopTransport:
        """Return connections to this address."""
        return LoopTransport(scheme, host, port, ssl_context)
