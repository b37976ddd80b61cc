"""What a handler says of a message: done, again, or dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from mq.errors import Unprocessable
from mq.queue import check_reason
from mq.queue_limits import INVISIBLE_MS_CEILING

__all__ = ["Dead", "Result", "Retry"]

_REASON: Final = "rejected by its consumer"


@dataclass(frozen=True)
class Result:
    """The outcome of handling a message.

    A handler returns `Result.OK` (or None), `Result.RETRY`, `Result.RETRY(delay_ms=5_000)`, `Result.DEAD` or
    `Result.DEAD("why")`. An exception is `Result.RETRY`.
    """

    OK: ClassVar[Result]
    RETRY: ClassVar[Retry]
    DEAD: ClassVar[Dead]


@dataclass(frozen=True)
class Retry(Result):
    """Deliver it again: after `delay_ms`, or when the group's retry policy says."""

    delay_ms: int | None = None

    def __post_init__(self) -> None:
        if self.delay_ms is not None and not 0 <= self.delay_ms <= INVISIBLE_MS_CEILING:
            raise Unprocessable(f"delay_ms must be 0 to {INVISIBLE_MS_CEILING}", field="delay_ms")

    def __call__(self, delay_ms: int) -> Retry:
        """The same, after `delay_ms`."""
        return Retry(delay_ms)


@dataclass(frozen=True)
class Dead(Result):
    """Do not deliver it again: to the group's dead letters, with the reason."""

    reason: str = _REASON

    def __post_init__(self) -> None:
        check_reason(self.reason)

    def __call__(self, reason: str) -> Dead:
        """The same, for this reason."""
        return Dead(reason)


Result.OK = Result()
Result.RETRY = Retry()
Result.DEAD = Dead()
