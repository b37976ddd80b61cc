"""The future of a send in a program with threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from deltamq.mq.client.shells.forks import ForkedClient, in_child

Result = TypeVar("Result")

#: Guards the step from light to full; held for a few instructions.
_growing = threading.Lock()
#: Number of forks: a future that was made before one is settled only in the parent.
_forks = 0


def _renew() -> None:
    global _growing, _forks
    _growing, _forks = threading.Lock(), _forks + 1


in_child(_renew)


class SendFuture(Future[Result], Generic[Result]):
    """A future that is done once the message is stored, refused or unknown. It cannot be cancelled.

    A plain `Future` has a condition, a lock and two containers. A producer makes a hundred thousand futures a second,
    and few of them are waited for one by one; plain ones would cost more time in the garbage collector than the sending
    does. This one becomes a plain `Future` when a method first needs it, so that `wait`, `as_completed` and
    `asyncio.wrap_future` work as usual.
    """

    _light = True
    _settled = False
    _value: Result | None = None
    _error: BaseException | None = None
    #: Number of forks before it was made; set only in children.
    _made_after = 0

    def __init__(self) -> None:
        """Do next to nothing: the base class is initialised when it is needed."""
        if _forks:
            self._made_after = _forks

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only: a method of `Future` reads the state of a plain future.
        if name.startswith("__"):
            raise AttributeError(name)
        self._grow()
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def _grow(self) -> None:
        """Become a plain future in the same state."""
        with _growing:
            if not self._light:
                return
            super().__init__()
            super().set_running_or_notify_cancel()
            if self._settled and self._error is not None:
                super().set_exception(self._error)
            elif self._settled:
                super().set_result(self._value)  # type: ignore[arg-type]  # a settled value is a Result
            self._light = False

    def set_result(self, result: Result) -> None:
        """Set the result; called once, by the producer."""
        with _growing:
            if self._light:
                self._value = result
                self._settled = True
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error; called once, by the producer."""
        with _growing:
            if self._light:
                self._error = exception
                self._settled = True
                return
        super().set_exception(exception)

    def cancelled(self) -> bool:
        """Return False."""
        return False

    def done(self) -> bool:
        """Return whether the outcome is set."""
        return self._settled if self._light else super().done()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result and return it, or raise the error."""
        if self._light and self._settled:
            if self._error is not None:
                raise self._error
            return self._value  # type: ignore[return-value]  # a settled value is a Result
        self._check_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; returns the error, or None if there is none."""
        if self._light and self._settled:
            return self._error
        self._check_here()
        return super().exception(timeout)

    def _check_here(self) -> None:
        if self._made_after != _forks and not self.done():
            raise ForkedClient("this send was queued before a fork: its outcome is in the parent").not_known()

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call `fn` with this future when it is done, or at once if it is done already."""
        self._grow()
        super().add_done_callback(fn)
