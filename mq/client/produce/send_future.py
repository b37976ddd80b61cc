"""The future of a send: a `concurrent.futures.Future` that costs one small object until somebody waits for it.

A plain `Future` brings a condition, a lock and two containers. Made a hundred thousand times a second, nearly all of
them never waited for one by one, they would keep the garbage collector busier than the sending itself. This one
becomes a plain `Future` the moment anything that needs one is asked of it, so that `wait`, `as_completed` and
`asyncio.wrap_future` work as ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

__all__ = ["SendFuture"]

Result = TypeVar("Result")

#: Guards the step from light to full; held for a few instructions.
_growing = threading.Lock()


class SendFuture(Future[Result], Generic[Result]):
    """Done once the message is stored, refused or unknown. It cannot be cancelled: what was handed over is sent."""

    _light = True
    _settled = False
    _value: Result | None = None
    _error: BaseException | None = None

    def __init__(self) -> None:
        """Nothing yet: the base class is initialised when it is needed."""

    def __getattr__(self, name: str) -> Any:
        # Only asked for what is missing: the state of a plain future, by a method of it.
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
        """Tell the result; called once, by the producer."""
        with _growing:
            if self._light:
                self._value = result
                self._settled = True
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Tell the error; called once, by the producer."""
        with _growing:
            if self._light:
                self._error = exception
                self._settled = True
                return
        super().set_exception(exception)

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self._settled if self._light else super().done()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result, or raise why there is none."""
        if self._light and self._settled:
            if self._error is not None:
                raise self._error
            return self._value  # type: ignore[return-value]  # a settled value is a Result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error; None when there is none."""
        if self._light and self._settled:
            return self._error
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call `fn` with this future when it is done; at once if it is already."""
        self._grow()
        super().add_done_callback(fn)
