"""What a partition does when it finds that its stored data contradicts itself: it refuses everything from then on."""

from __future__ import annotations

from mq.errors import Corrupt, DeltaMQError

__all__ = ["StopOnCorrupt"]


class StopOnCorrupt:
    """Guards work (`with`) that may find damage. Any number of threads may be inside at once."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        #: What was found; None while the partition serves.
        self.error: DeltaMQError | None = None

    def check(self) -> None:
        """Raise what was found, as a fresh error: one exception object must not be raised by several threads."""
        if self.error is not None:
            raise type(self.error)(self.error.detail)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Corrupt):
            self.error = error
