"""The stop of a partition whose stored data contradicts itself: it refuses all further calls."""

from __future__ import annotations

from collections.abc import Callable

from deltamq.mq.errors import Corrupt, DeltaMQError


class StopOnCorrupt:
    """A context manager for work that may find damage. Any number of threads may be inside at once."""

    __slots__ = ("_on_stop", "error")

    def __init__(self, on_stop: Callable[[DeltaMQError], None]) -> None:
        """`on_stop` is called once, with the first error."""
        self._on_stop = on_stop
        #: The error that was found; None while the partition serves.
        self.error: DeltaMQError | None = None

    def stop(self, error: DeltaMQError) -> None:
        """Refuse all further calls with this error."""
        is_first, self.error = self.error is None, error
        if is_first:
            self._on_stop(error)

    def check(self) -> None:
        """Raise the error as a new object: threads must not raise the same exception object."""
        if self.error is not None:
            raise type(self.error)(self.error.detail)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Corrupt):
            self.stop(error)
