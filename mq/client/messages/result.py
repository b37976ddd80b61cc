"""The result that a handler returns for a message: done, retry, or dead letter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import INVISIBLE_MS_CEILING
from deltamq.mq.queue.retry import check_reason

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
    """Deliver the message again, after `delay_ms` or by the group's retry policy."""

    delay_ms: int | None = None

    def __post_init__(self) -> None:
        if self.delay_ms is not None and not 0 <= self.delay_ms <= INVISIBLE_MS_CEILING:
            raise Unprocessable(f"delay_ms must be 0 to {INVISIBLE_MS_CEILING}", field="delay_ms")

    def __call__(self, delay_ms: int) -> Retry:
        """Return a `Retry` after `delay_ms`."""
        return Retry(delay_ms)


@dataclass(frozen=True)
class Dead(Result):
    """Send the message to the group's dead letters, with the reason."""

    reason: str = _REASON

    def __post_init__(self) -> None:
        check_reason(self.reason)

    def __call__(self, reason: str) -> Dead:
        """Return a `Dead` with this reason."""
        return Dead(reason)


Result.OK = Result()
Result.RETRY = Retry()
Result.DEAD = Dead()
