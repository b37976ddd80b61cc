"""Counting what a partition's files hold: exact, bounded, and not misled by what goes on meanwhile (MODEL-3)."""

from __future__ import annotations

import numpy as np
import pytest

from deltamq.mq.errors import Corrupt
from deltamq.tables.ops.offset_counts import Count, count_offsets, finding_of
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF, batch
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

DAMAGE = {
    "dense": ([range(100), range(100, 300)], (300, 300, 0, 299)),
    "a hole": ([range(100), range(101, 200)], (199, 199, 0, 199)),
    "an offset twice": ([range(100), range(99, 200)], (201, 200, 0, 199)),
    "a file twice": ([range(100), range(100)], (200, 100, 0, 99)),
    "twice in one": ([[5, 5, 6, 8]], (4, 3, 5, 8)),
    "far apart": ([[0, 63, 64, 1 << 40]], (4, 4, 0, 1 << 40)),
    "nothing": ([], (0, 0, None, None)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_model_3_distinct_offsets_are_counted_exactly(name: str) -> None:
    pieces, expected = DAMAGE[name]
    found = Count()
    for piece in pieces:
        found.add(np.array(piece, dtype=np.int64))
    assert (found.messages, found.distinct, found.first, found.last) == expected


def test_model_3_offsets_that_are_anywhere_cost_a_bounded_amount_of_memory() -> None:
    found = Count(maps_max=100)
    found.add(np.arange(0, 101 * 8_192, 8_192, dtype=np.int64))
    assert found.distinct == 101
    with pytest.raises(Corrupt, match="far apart"):
        found.add(np.array([1 << 40, 1 << 41], dtype=np.int64))


@pytest.mark.parametrize(
    ("bounds", "offsets", "finding"),
    [
        ((0, 3), [0, 1, 2], ""),
        ((5, 5), [], ""),
        ((0, 3), [0, 1, 1], "1 messages have an offset that another message has, too"),
        ((0, 4), [0, 1, 3], "1 of the 4 offsets before mq.offset have no message"),
        ((0, 3), [1, 2, 3], "offsets are [1, 3], not [0, 2]"),
    ],
)
def test_model_3_what_is_wrong_is_said(bounds: tuple[int, int], offsets: list[int], finding: str) -> None:
    found = Count()
    found.add(np.array(offsets, dtype=np.int64))
    assert finding_of(*bounds, found) == finding


def test_retry_6_what_retention_takes_away_while_it_is_counted_is_no_damage(
    open_log: OpenLog,
    files: MemoryStore,
    clock: SetClock,
) -> None:
    log = open_log(file_keep_ms=1)
    for _ in range(4):
        log.append([batch(*[b"x"] * 10)])
    reading = FaultyStore(files)

    def meanwhile(_: str) -> None:
        log.delete_below(20)
        clock.advance_ms(2)
        log.clean()

    reading.once("before", "read_parts", meanwhile)
    snapshot, count = count_offsets(reading, REF)
    assert (snapshot.min_offset, count.messages, count.distinct, count.first) == (20, 20, 20, 20)
