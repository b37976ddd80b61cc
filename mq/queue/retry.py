"""Retries: how long a failed message waits, when it is dead, and the topics of both (SPEC RETRY-1 to RETRY-3, POP-11).

A message is delivered at most `max_attempts` times. After the failure of attempt n it waits by the group's policy and
is delivered as attempt n + 1; after the last attempt it goes to the dead letters. Randomness is passed in.

    attempt 1 --fails--> wait 10 s --> attempt 2 --fails--> wait 30 s --> ... attempt 16 --fails--> dead letter
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import REASON_LENGTH_MAX, RETRY_WAIT_MS_MAX, RETRY_WAITS_MAX
from deltamq.mq.names import broker_of, partition_name
from deltamq.mq.queue.checkpoint import LaneKey

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
#: The waits of the default policy (SPEC RETRY-2).
DEFAULT_WAITS_MS: Final = (
    10 * _SECOND,
    30 * _SECOND,
    *(n * _MINUTE for n in range(1, 11)),
    20 * _MINUTE,
    30 * _MINUTE,
    1 * _HOUR,
    2 * _HOUR,
)
#: The header of a dead letter with its reason.
DEAD_REASON_HEADER: Final = "mq-dead-reason"


class Waits(msgspec.Struct, frozen=True):
    """A list of waits: after attempt 1, after attempt 2, ...; the last one is repeated."""

    waits_ms: tuple[int, ...] = DEFAULT_WAITS_MS

    def __post_init__(self) -> None:
        if not 1 <= len(self.waits_ms) <= RETRY_WAITS_MAX:
            raise Unprocessable(f"retry_policy must list 1 to {RETRY_WAITS_MAX} waits", field="retry_policy")
        for wait in self.waits_ms:
            _check_wait("retry_policy", wait)


class Exponential(msgspec.Struct, frozen=True, kw_only=True):
    """Waits that begin at `initial_ms` and grow by `multiplier` up to `max_ms`; `jitter` (0 to 1) varies each one."""

    initial_ms: int = 5 * _SECOND
    multiplier: float = 2.0
    max_ms: int = 2 * _HOUR
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _check_wait("retry_policy.exponential.initial_ms", self.initial_ms)
        _check_wait("retry_policy.exponential.max_ms", self.max_ms)
        _check_between("retry_policy.exponential.multiplier", self.multiplier, 1.0, 100.0)
        _check_between("retry_policy.exponential.jitter", self.jitter, 0.0, 1.0)
        if self.max_ms < self.initial_ms:
            raise Unprocessable("max_ms must not be below initial_ms", field="retry_policy.exponential.max_ms")


class Fixed(msgspec.Struct, frozen=True):
    """The same wait after every attempt."""

    fixed_ms: int

    def __post_init__(self) -> None:
        _check_wait("retry_policy.fixed_ms", self.fixed_ms)


RetryPolicy = Waits | Exponential | Fixed


def _check_wait(name: str, value: int) -> None:
    if not 0 <= value <= RETRY_WAIT_MS_MAX:
        raise Unprocessable(
            f"{name}: a wait is 0 to {RETRY_WAIT_MS_MAX} ms", field=name, extra={"min": 0, "max": RETRY_WAIT_MS_MAX}
        )


def _check_between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise Unprocessable(f"{name} must be {low} to {high}", field=name, extra={"min": low, "max": high})


def wait_ms(policy: RetryPolicy, attempt: int, draw: float = 0.5) -> int:
    """Return how long a message waits after its `attempt`-th delivery failed.

    `draw` is a random number from 0 to 1; only a policy with jitter uses it.
    """
    assert attempt >= 1 and 0.0 <= draw <= 1.0
    if isinstance(policy, Fixed):
        return policy.fixed_ms
    if isinstance(policy, Waits):
        return policy.waits_ms[min(attempt, len(policy.waits_ms)) - 1]
    plain = Backoff(policy.initial_ms, policy.max_ms, policy.multiplier).after(attempt)
    return min(policy.max_ms, round(plain * (1.0 + policy.jitter * (2.0 * draw - 1.0))))


class DeadReason(enum.Enum):
    """Why DeltaMQ itself dead-letters a message; a client that dead-letters one gives its own reason."""

    MAX_ATTEMPTS = "max_attempts"  #: delivered as often as the group allows, never acknowledged


class Again(msgspec.Struct, frozen=True):
    """Deliver the message again after this wait."""

    wait_ms: int


class Dead(msgspec.Struct, frozen=True):
    """Dead-letter the message."""

    reason: str


def after_failure(policy: RetryPolicy, *, attempt: int, max_attempts: int, draw: float = 0.5) -> Again | Dead:
    """Decide about a message whose `attempt`-th delivery failed or was never acknowledged (SPEC RETRY-3, POP-11)."""
    if attempt >= max_attempts:
        return Dead(DeadReason.MAX_ATTEMPTS.value)
    return Again(wait_ms(policy, attempt, draw))


# Settings.


def policy_to_json(policy: RetryPolicy) -> list[int] | dict[str, object]:
    """Return the policy in the form of the API."""
    if isinstance(policy, Fixed):
        return {"fixed_ms": policy.fixed_ms}
    if isinstance(policy, Waits):
        return list(policy.waits_ms)
    return {
        "exponential": {
            "initial_ms": policy.initial_ms,
            "multiplier": policy.multiplier,
            "max_ms": policy.max_ms,
            "jitter": policy.jitter,
        }
    }


def policy_from_json(value: object) -> RetryPolicy:
    """Return the policy of a list of waits in milliseconds, of `{"exponential": {...}}` or of `{"fixed_ms": n}`.

    Raises
    ------
    Refused
        `invalid_type`, `unknown_field`; `field` names the wrong field.
    Unprocessable
        `invalid_value` for a number out of bounds.
    """
    if isinstance(value, list):
        return Waits(tuple(_whole("retry_policy", item) for item in value))
    if isinstance(value, Mapping) and list(value) == ["fixed_ms"]:
        return Fixed(_whole("retry_policy.fixed_ms", value["fixed_ms"]))
    if isinstance(value, Mapping) and list(value) == ["exponential"]:
        return _exponential(value["exponential"])
    raise Refused(
        'retry_policy must be a list of waits in ms, {"exponential": {...}} or {"fixed_ms": n}',
        code="invalid_type",
        field="retry_policy",
    )


def _exponential(value: object) -> Exponential:
    where = "retry_policy.exponential"
    if not isinstance(value, Mapping):
        raise Refused(f"{where} must be an object", code="invalid_type", field=where)
    default = Exponential()
    known: dict[str, float] = {
        "initial_ms": default.initial_ms,
        "multiplier": default.multiplier,
        "max_ms": default.max_ms,
        "jitter": default.jitter,
    }
    for name, item in value.items():
        if name not in known:
            raise Refused(f"{where} has no field {name!r}", code="unknown_field", field=f"{where}.{name}")
        known[name] = _number(f"{where}.{name}", item)
    return Exponential(
        initial_ms=_whole(f"{where}.initial_ms", known["initial_ms"]),
        multiplier=known["multiplier"],
        max_ms=_whole(f"{where}.max_ms", known["max_ms"]),
        jitter=known["jitter"],
    )


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{name} must be a whole number of milliseconds", code="invalid_type", field=name)
    return value


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Refused(f"{name} must be a number", code="invalid_type", field=name)
    return value


def check_reason(reason: str) -> str:
    """Return `reason` if it may stand in a table and in a header, else raise `Unprocessable`."""
    if not (0 < len(reason) <= REASON_LENGTH_MAX and reason.isprintable()):
        raise Unprocessable(
            f"reason must be 1 to {REASON_LENGTH_MAX} printable characters",
            field="reason",
            extra={"limit": REASON_LENGTH_MAX},
        )
    return reason


def with_reason(headers: Mapping[str, str], reason: str) -> dict[str, str]:
    """Return the headers of a dead letter: the message's own, and the reason."""
    return {**headers, DEAD_REASON_HEADER: reason}


def without_reason(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a dead letter that is sent back: all but the reason."""
    return {name: value for name, value in headers.items() if name != DEAD_REASON_HEADER}


_MARKS: Final = "%DLQ_MARKS%"


class RetryTopic(msgspec.Struct, frozen=True):
    """The messages of one topic that one group retries. The pair is the identity (SPEC POP-11).

    RocketMQ's name `%RETRY%{group}_{topic}` is only for display: group `a_b` of topic `c` and group `a` of topic `b_c`
    share it. No name holds a slash, so `storage_name` is one to one.
    """

    group: str
    topic: str

    @property
    def name(self) -> str:
        return f"%RETRY%{self.group}_{self.topic}"

    @property
    def storage_name(self) -> str:
        """The name from which its folder is made."""
        return f"{self.group}/{self.topic}"

    @classmethod
    def of_storage_name(cls, storage_name: str) -> RetryTopic:
        """Return the retry topic with this `storage_name`."""
        group, _, topic = storage_name.partition("/")
        return cls(group, topic)

    def partition(self, broker: str) -> str:
        """Return the name of its only partition on a broker."""
        return partition_name(self.name, broker)


class DeadLetterTopic(msgspec.Struct, frozen=True):
    """The dead letters of a group, of all its topics (SPEC RETRY-3)."""

    group: str

    @property
    def name(self) -> str:
        return f"%DLQ%{self.group}"

    @property
    def storage_name(self) -> str:
        """The name from which its folder is made."""
        return self.group

    def partition(self, broker: str) -> str:
        """Return the name of its only partition on a broker."""
        return partition_name(self.name, broker)

    def marks(self, broker: str) -> str:
        """Return the name of the partition of the marks of these dead letters (SPEC RETRY-8)."""
        return partition_name(f"{_MARKS}{self.group}", broker)


def holds_marks(partition: str) -> bool:
    """Whether a partition beside dead letters holds their marks."""
    return partition.startswith(_MARKS)


def retry_lane(lane: LaneKey, topic: str) -> LaneKey:
    """Return the lane of the group's retried messages on the broker of `lane`."""
    broker = broker_of(lane.partition)
    return lane._replace(retry=True, partition=RetryTopic(lane.group, topic).partition(broker))
