"""A group's settings, and the request that sets them (API `PUT /v1/groups/{group}`).

A setting is checked when it is requested. The numbers of stored settings are read without a check of their bounds, so
that a release with other bounds can still start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec.structs import replace

from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import (
    INVISIBLE_MS_CEILING,
    INVISIBLE_MS_DEFAULT,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    MAX_ATTEMPTS_DEFAULT,
    MAX_ATTEMPTS_MAX,
)
from deltamq.mq.meta.allocation import STRATEGIES, Strategy
from deltamq.mq.queue.progress import Start
from deltamq.mq.queue.retry import RetryPolicy, Waits, policy_from_json, policy_to_json
from deltamq.mq.stored_json import integer, mapping

ConsumeStrategy = Literal["shared", "exclusive", "broadcast"]
#: False: no order; True: whole partitions in order (SPEC POP-16); "key": each key in order (SPEC POP-17).
Ordering = bool | Literal["key"]

_STRATEGIES: Final[tuple[str, ...]] = get_args(ConsumeStrategy)


class InvisibleBounds(msgspec.Struct, frozen=True):
    """The bounds of the invisible times that clients may request (SPEC POP-3); configurable in the service."""

    min_ms: int = INVISIBLE_MS_MIN
    max_ms: int = INVISIBLE_MS_MAX

    def __post_init__(self) -> None:
        if not 0 < self.min_ms <= self.max_ms <= INVISIBLE_MS_CEILING:
            raise ValueError(f"bounds of invisible times must ascend and be 1 to {INVISIBLE_MS_CEILING} ms")

    def check(self, invisible_ms: int, *, field: str = "invisible_ms", zero: bool = False) -> int:
        """Return `invisible_ms` if it is within bounds, or 0 with `zero`; else raise `Unprocessable`."""
        if not (self.min_ms <= invisible_ms <= self.max_ms or (zero and invisible_ms == 0)):
            raise Unprocessable(
                f"{field} must be {self.min_ms} to {self.max_ms}{', or 0' if zero else ''}",
                field=field,
                extra={"min": self.min_ms, "max": self.max_ms},
            )
        return invisible_ms


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a group that users may change."""

    consume_strategy: ConsumeStrategy = "shared"
    #: How the partitions of an exclusive group are allocated to clients (SPEC ORDER-1).
    allocation_strategy: Strategy = "sticky"
    order: Ordering = False
    #: Where the group begins in a partition that it never consumed (SPEC CONS-2).
    consume_from: Start = msgspec.field(default_factory=Start)
    #: The most deliveries of a message before it is dead-lettered (SPEC RETRY-3).
    max_attempts: int = MAX_ATTEMPTS_DEFAULT
    retry_policy: RetryPolicy = msgspec.field(default_factory=Waits)
    #: The invisible time of pops that do not name one (SPEC POP-3).
    invisible_ms: int = INVISIBLE_MS_DEFAULT

    def to_json(self) -> dict[str, object]:
        return {
            "consume_strategy": self.consume_strategy,
            "allocation_strategy": self.allocation_strategy,
            "order": self.order,
            "consume_from": self.consume_from.to_json(),
            "max_attempts": self.max_attempts,
            "retry_policy": policy_to_json(self.retry_policy),
            "invisible_ms": self.invisible_ms,
        }

    @classmethod
    def from_json(cls, value: object) -> GroupSettings:
        """Return the settings that `to_json` wrote; settings that an older release did not have get their defaults."""
        stored: Mapping[str, object] = {**cls().to_json(), **mapping(value)}
        strategy, order = stored["consume_strategy"], stored["order"]
        allocation = stored["allocation_strategy"]
        if strategy not in _STRATEGIES or not _is_ordering(order) or allocation not in STRATEGIES:
            raise ValueError(f"{strategy!r}, {allocation!r} or {order!r} is not a valid setting")
        try:
            start = Start.from_json(stored["consume_from"], field="consume_from")
            policy = policy_from_json(stored["retry_policy"])
        except Refused as error:
            raise ValueError(error.detail) from error
        return cls(
            consume_strategy=cast(ConsumeStrategy, strategy),
            allocation_strategy=cast(Strategy, allocation),
            order=cast(Ordering, order),
            consume_from=start,
            max_attempts=integer(stored["max_attempts"]),
            retry_policy=policy,
            invisible_ms=integer(stored["invisible_ms"]),
        )


def _is_ordering(value: object) -> bool:
    return isinstance(value, bool) or value == "key"


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for group settings. None leaves a setting unchanged; a new group gets the default."""

    consume_strategy: ConsumeStrategy | None = None
    allocation_strategy: Strategy | None = None
    order: Ordering | None = None
    consume_from: Start | None = None
    max_attempts: int | None = None
    retry_policy: RetryPolicy | None = None
    invisible_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that break a rule; `from_json` checks invisible times, whose bounds depend on the service."""
        if self.consume_strategy is not None and self.consume_strategy not in _STRATEGIES:
            raise Unprocessable(f"consume_strategy must be one of {', '.join(_STRATEGIES)}", field="consume_strategy")
        if self.allocation_strategy is not None and self.allocation_strategy not in STRATEGIES:
            raise Unprocessable(
                f"allocation_strategy must be one of {', '.join(STRATEGIES)}", field="allocation_strategy"
            )
        if self.order is not None and not _is_ordering(self.order):
            raise Unprocessable('order must be true, false or "key"', field="order")
        if self.max_attempts is not None and not 1 <= self.max_attempts <= MAX_ATTEMPTS_MAX:
            raise Unprocessable(
                f"max_attempts must be 1 to {MAX_ATTEMPTS_MAX}",
                field="max_attempts",
                extra={"min": 1, "max": MAX_ATTEMPTS_MAX},
            )

    @classmethod
    def from_json(cls, given: Mapping[str, Any], bounds: InvisibleBounds | None = None) -> GroupRequest:
        """Return the request with the fields of `PUT /v1/groups/{group}`; their types were checked before.

        Raises
        ------
        Refused
            For an invalid `retry_policy`, or a value out of bounds (`Unprocessable`); `field` names it.
        """
        start, policy, invisible_ms = given.get("consume_from"), given.get("retry_policy"), given.get("invisible_ms")
        if invisible_ms is not None:
            (bounds or InvisibleBounds()).check(invisible_ms)
        read = {
            "consume_from": None if start is None else Start.from_json(start, field="consume_from"),
            "retry_policy": None if policy is None else policy_from_json(policy),
        }
        return cls(**{**given, **read})

    def over(self, settings: GroupSettings) -> GroupSettings:
        """Return `settings` with the changes of this request."""
        order = settings.order if self.order is None else self.order
        return replace(
            settings,
            consume_strategy=self.consume_strategy or settings.consume_strategy,
            allocation_strategy=self.allocation_strategy or settings.allocation_strategy,
            order=order,
            consume_from=self.consume_from or settings.consume_from,
            max_attempts=self.max_attempts or settings.max_attempts,
            retry_policy=self.retry_policy or settings.retry_policy,
            invisible_ms=self.invisible_ms or settings.invisible_ms,
        )
