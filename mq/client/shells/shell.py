"""One core, two shells: the client's coroutines, driven by threads that block or by an event loop.

    core      what producers and consumers decide: `async def`, with a shell for whatever waits
    threads   the shell's calls block, so a coroutine ends without ever being suspended; `run_now` takes its result
    loop      the shell's calls wait for the loop: `AsyncProducer`, `AsyncPopConsumer`, ...

The core holds a condition's lock never across an `await`: with a loop there is no lock at all.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from ssl import SSLContext
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Body: TypeAlias = bytes | memoryview
#: What is run in the background: a function that makes a coroutine.
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Answer(NamedTuple):
    """The answer to a request, whatever its status; the names of headers are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Kept connections to one process of the service."""

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: Body | None, timeout_s: float
    ) -> Answer:
        """Send a request and return its answer; raises `Unavailable` or `Unknown`, see `mq.client.http.endpoint`."""

    async def close(self) -> None:
        """Close the connections."""


class Condition(Protocol):
    """A lock, and a wait for a change of what it guards."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The lock itself: a lock behind Python code could be left locked by Ctrl-C."""

    async def until(self, attempt: Callable[[], T], timeout_s: float | None = None) -> T:
        """Call `attempt` under the lock, again after each `notify`, until it returns something true; return that.

        After `timeout_s`, or at once if that is not above 0, return what it returned last.
        """

    def notify(self) -> None:
        """Let every `until` attempt again."""


class Workers(Protocol):
    """Runs work in the background, so much of it at a time and no more."""

    def submit(self, work: Work) -> None:
        """Run the work soon."""

    async def close(self) -> None:
        """Take no more work. Threads still do what was submitted; tasks are cancelled."""


class Outcome(Protocol[T]):
    """The future of one result: `SendFuture` with threads, `asyncio.Future` with a loop."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def set_result(self, result: T, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...
    def result(self) -> T: ...
    def exception(self) -> BaseException | None: ...


class Shell(Protocol):
    """What the core needs of its surroundings."""

    def check(self) -> None:
        """Refuse a call from where this client must not be used: another event loop, the child of a fork."""

    def now(self) -> float:
        """Return seconds of a monotonic clock."""

    def condition(self) -> Condition:
        """Return a new condition."""

    def workers(self, most: int, name: str) -> Workers:
        """Return what runs at most `most` pieces of work at once."""

    def spawn(self, name: str, work: Work) -> None:
        """Run the work in the background, however much is running."""

    def future(self) -> Outcome[Any]:
        """Return a future that nothing waits for yet."""

    async def outcome(self, future: Outcome[T], deadline: float) -> T:
        """Wait until the deadline (of `now`) for the result of a future of this shell.

        Raises its error, or `TimeoutError`.
        """

    async def call(self, function: Callable[[Any], object], argument: object) -> object:
        """Call a function of the user's; on an event loop, await it, or call it in one of a few threads."""

    def gives_up(self, error: BaseException) -> bool:
        """Return whether the error cancels who called the user's function, and is none of the function."""

    def others(self) -> Coroutine[Any, Any, None] | None:
        """Return what is to be awaited to let others have a turn, now and then: the caller waits for nothing else."""

    async def blocking(self, function: Callable[[], T]) -> T:
        """Call a function that may block; on an event loop, in a thread."""

    async def close(self) -> None:
        """End what still runs in the background; threads end by themselves."""

    def transport(self, scheme: str, host: str, port: int, ssl_context: SSLContext | None) -> Transport:
        """Return connections to this address."""


class Stop:
    """An event that is set once; waits end when it is."""

    def __init__(self, shell: Shell) -> None:
        self._changed = shell.condition()
        self.is_set = False

    def set(self) -> None:
        """Set it."""
        with self._changed.lock:
            self.is_set = True
            self._changed.notify()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for it; returns whether it is set."""
        return await self._changed.until(lambda: self.is_set, timeout_s)


class Signal:
    """A wake-up call: a wait ends when it was given since the last wait."""

    def __init__(self, shell: Shell) -> None:
        self._changed = shell.condition()
        self._given = False

    def give(self) -> None:
        """Let the present wait end, or the next one."""
        with self._changed.lock:
            self._given = True
            self._changed.notify()

    async def wait(self, timeout_s: float) -> None:
        """Wait for the signal, at most so long."""
        await self._changed.until(lambda: self._given, timeout_s)
        self._given = False


async def pause(shell: Shell, wait_s: float) -> None:
    """Wait so long."""
    await shell.condition().until(lambda: False, wait_s)


class Running:
    """Work that was begun in the background, and its end."""

    def __init__(self, shell: Shell, name: str, work: Work) -> None:
        self._work = work
        self._over = Stop(shell)
        shell.spawn(name, self._run)

    async def _run(self) -> None:
        try:
            await self._work()
        finally:
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set

    async def join(self, timeout_s: float) -> bool:
        """Wait for its end; returns whether it has ended."""
        return await self._over.wait(timeout_s)


class Inside:
    """A mark on what runs within a `with` block of this object: calls there that would wait for it are refused."""

    def __init__(self, name: str) -> None:
        self._active = ContextVar(name, default=False)

    @property
    def active(self) -> bool:
        """Whether the caller is in such a block."""
        return self._active.get()

    def __enter__(self) -> None:
        self._active.set(True)

    def __exit__(self, *_: object) -> None:
        self._active.set(False)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine of the core that runs with threads: nothing in it waits for a loop."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise AssertionError("a coroutine of the core waited for an event loop, in a shell of threads")
