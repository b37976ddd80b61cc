"""What calls tell of deliveries and outcomes, noted at once and summed later, many calls at a time.

    pop, pull --delivered--> a list --sums()--> by minute, group, topic and broker: counts, ages, times of handling
    ack, nack --handled-----^

Between the other work of a call, each small operation on columns takes several times as long as one after the other.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.mq.queue.checkpoint import Attempts
from deltamq.mq.statistics import Consumed, MinuteKey


class Outcome(enum.Enum):
    """What became of a delivered message, as its client told."""

    SUCCEEDED = "acknowledged or committed"
    FAILED = "given back, to be delivered again"
    DEAD = "sent to the dead letters"


class _Delivered(NamedTuple):
    """Messages that one client got at once."""

    now_ms: int
    rows: pa.Table
    attempts: Attempts


class _Handled(NamedTuple):
    """Messages that were delivered at one time and have an outcome now."""

    took_ms: int
    messages: int
    outcome: Outcome


class PendingCounts:
    """Deliveries and outcomes that are in no sum yet."""

    def __init__(self) -> None:
        self._delivered: dict[MinuteKey, list[_Delivered]] = {}
        self._handled: dict[MinuteKey, list[_Handled]] = {}
        #: Calls that are noted.
        self.calls = 0

    def delivered(self, key: MinuteKey, now_ms: int, rows: pa.Table, attempts: Attempts) -> None:
        """Note messages that a client gets, with the number of the delivery of each."""
        self._delivered.setdefault(key, []).append(_Delivered(now_ms, rows, attempts))
        self.calls += 1

    def handled(self, key: MinuteKey, took_ms: int, messages: int, outcome: Outcome) -> None:
        """Note messages that have an outcome `took_ms` after their delivery."""
        self._handled.setdefault(key, []).append(_Handled(took_ms, messages, outcome))
        self.calls += 1

    def sums(self) -> dict[MinuteKey, Consumed]:
        """Return what was noted since the last call, and forget it."""
        found = {key: _sum_of_delivered(noted) for key, noted in self._delivered.items()}
        for key, handled in self._handled.items():
            _add_handled(found.setdefault(key, Consumed()), handled)
        self._delivered, self._handled, self.calls = {}, {}, 0
        return found


def _sum_of_delivered(noted: Sequence[_Delivered]) -> Consumed:
    counts = [one.rows.num_rows for one in noted]
    now_ms = np.repeat(np.array([one.now_ms for one in noted], dtype=np.int64), counts)
    ages_ms = np.maximum(now_ms - _born_us([one.rows for one in noted]) // 1_000, 0)
    return Consumed(
        delivered=sum(counts),
        redelivered=sum(map(_again, noted)),
        age_ms=int(ages_ms.sum()),
        age_max_ms=int(ages_ms.max(initial=0)),
    )


def _again(one: _Delivered) -> int:
    """Return how many of the messages were delivered before."""
    if isinstance(one.attempts, int):
        return one.rows.num_rows if one.attempts > 1 else 0
    return sum(attempt > 1 for attempt in one.attempts)


def _born_us(tables: Sequence[pa.Table]) -> NDArray[np.int64]:
    """Return when each message was born, or appended if its producer did not say."""
    chunks: list[pa.Array] = []
    for rows in tables:
        born = rows.column("born_time")
        if born.null_count:
            born = pc.coalesce(born, rows.column("append_time"))
        chunks += born.chunks
    times: NDArray[np.int64] = pa.chunked_array(chunks, born.type).to_numpy().view(np.int64)
    return times


def _add_handled(total: Consumed, noted: Sequence[_Handled]) -> None:
    for took_ms, messages, outcome in noted:
        total.handling_ms += took_ms * messages
        total.handling_max_ms = max(total.handling_max_ms, took_ms)
        if outcome is Outcome.SUCCEEDED:
            total.succeeded += messages
        elif outcome is Outcome.FAILED:
            total.failed += messages
        else:
            total.dead += messages
