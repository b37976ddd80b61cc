"""The steps of one request that is measured: for its line in the log if it was slow, and for its spans if it is traced.

    request: | body | work ...............................................| answer |
                       store: | ................................. |
                               commit: | queue | encode | publish | apply |

Most requests are not measured: their scope has no `STEPS`, and nobody looks at a clock for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

#: Names of facts, by the conventions for spans of messaging.
TOPIC_FACT: Final = "messaging.destination.name"
PARTITION_FACT: Final = "messaging.destination.partition.id"
GROUP_FACT: Final = "messaging.consumer.group.name"


class Step(NamedTuple):
    """A step from its begin to its end, in seconds of `time.perf_counter`."""

    name: str
    began_s: float
    ended_s: float
    #: What it consists of.
    parts: Sequence[Step] = ()
    #: What spans say of it.
    facts: Mapping[str, str | int] = {}


class Steps:
    """The steps of one request. Any thread may add some."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def add(self, step: Step) -> None:
        self._steps.append(step)

    def __iter__(self) -> Iterator[Step]:
        return iter(list(self._steps))

    def longest_s(self) -> dict[str, float]:
        """Return the seconds of each kind of step, the longest of those that ran beside each other."""
        longest: dict[str, float] = {}
        waiting = list(self._steps)
        for step in waiting:
            longest[step.name] = max(longest.get(step.name, 0.0), step.ended_s - step.began_s)
            waiting += step.parts
        return longest


class Times(msgspec.Struct):
    """When one request was where, in seconds of `time.perf_counter`; what did not happen has the time before it."""

    steps: Steps
    began_s: float
    body_s: float
    answer_s: float
    ended_s: float
    #: The status of the answer; 0 if there was none.
    status: int = 0


class CallTrace(Protocol):
    """A call of one of Kafka's clients: traced if a sender of its messages is, or as one of the others' share."""

    def steps_of(self, topic: str, records: bytes | memoryview) -> Steps | None:
        """Note uncompressed records that the call stores; return where to note steps, None if it is not traced."""

    def fail(self, error: str) -> None:
        """Note an error of the call; the first counts."""

    def end(self, call: str, client: str | None, group: str, began_s: float) -> None:
        """Make the spans, if the call is traced; `began_s` is a time of `time.perf_counter`, `group` may be empty."""
