"""Commits folded in columns against the fold of the core (SPEC CONS-4: any order, any repetition), and losses."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.merge import losses
from deltamq.jobs.merge.offsets import decode, fold, joined
from deltamq.mq.errors import Corrupt
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import CommitNote, Committed, Delivered, OffsetRecord, committed_of
from deltamq.mq.queue.revive import LostReason, LostRecord
from deltamq.tables.queue.records import rows_of_lost_records, rows_of_offset_records

LANES = [LaneKey("id-1", "billing", retry, f"orders#{n}@a") for n in range(2) for retry in (False, True)]
small = st.integers(0, 30)
ranges = st.lists(st.tuples(small, small).map(sorted).map(tuple), max_size=3).map(tuple)
leases = st.lists(st.builds(Delivered, small, st.integers(1, 5), small, small), max_size=3).map(tuple)
notes = st.none() | st.builds(CommitNote, st.integers(1, 3), st.text(max_size=2))
plain = st.builds(Committed, st.integers(1, 2), small)
noted = st.builds(Committed, st.integers(1, 2), st.integers(0, 3), note=notes)
ordered = st.builds(Committed, st.integers(1, 2), small, ranges, leases, notes)
records = st.lists(
    st.builds(
        OffsetRecord, lane=st.sampled_from(LANES), topic=st.just("orders"), committed=st.one_of(plain, noted, ordered)
    ),
    max_size=20,
)


def stored(rows: pa.RecordBatch, base: int = 0) -> pa.Table:
    return pa.table(rows).append_column("offset", pa.array(np.arange(base, base + rows.num_rows)))


def columns(some: Sequence[OffsetRecord]) -> dict[LaneKey, Committed]:
    return {lane: at.join(at) for lane, (_, at) in fold([decode(stored(rows_of_offset_records(some)))]).items()}


def core(some: Sequence[OffsetRecord]) -> dict[LaneKey, Committed]:
    """A lane that one record alone is about has it as it was written: joined with itself it is in its plain form."""
    return {lane: at.join(at) for lane, at in committed_of({}, some).items()}


@given(records)
def test_cons_04_the_fold_in_columns_is_the_fold_of_the_core(some: list[OffsetRecord]) -> None:
    assert columns(some) == core(some)


@given(records, small, st.randoms(use_true_random=False))
def test_cons_04_pieces_repetition_and_order_do_not_matter(some: list[OffsetRecord], cut: int, random: object) -> None:
    pieces = [some[:cut], some[cut:], some]
    random.shuffle(pieces)
    known: dict[LaneKey, tuple[str, Committed]] = {}
    for piece in pieces:
        new = fold([decode(stored(rows_of_offset_records(piece)))])
        changed = joined(known, new)
        assert all(known.get(lane) != at for lane, at in changed.items())
        known |= changed
    assert {lane: at.join(at) for lane, (_, at) in known.items()} == core(some)
    assert not joined(known, known)


def test_no_commits_make_no_rows() -> None:
    assert fold([]) == {}
    assert fold([decode(stored(rows_of_offset_records([])))]) == {}


GOOD = OffsetRecord(lane=LANES[0], topic="orders", committed=Committed(3, 9, ((11, 12),), (Delivered(10, 2, 5, 7),)))
STORED = json.loads(GOOD.to_json())
DAMAGE: dict[str, object] = {
    "no object": [],
    "a commit without its topic": {k: v for k, v in STORED.items() if k != "topic"},
    "text for a number": {**STORED, "offset": "9"},
    "a range with one end": {**STORED, "done": [[1]]},
    "a range of nothing": {**STORED, "done": [None]},
    "a lease of nothing": {**STORED, "delivered": [[1, 1, 5, None]]},
    "a note without a text": {**STORED, "note": {"number": 1}},
    "a note that is a text": {**STORED, "note": "worker"},
    "a lease without its end": {**STORED, "delivered": [[1, 1, 5]]},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_commit_is_named_by_its_offset(name: str) -> None:
    good = stored(rows_of_offset_records([GOOD]), 40)
    bad = pa.table({"tag": ["offset"], "body": pa.array([json.dumps(DAMAGE[name]).encode()], pa.binary())})
    rows = pa.concat_tables([good, bad.append_column("offset", pa.array([41]))])
    with pytest.raises(Corrupt, match="offset 41"):
        decode(rows)


def loss(*lost: tuple[int, int], time_ms: int = 5_000) -> LostRecord:
    return LostRecord(lane=LANES[0], topic="orders", ranges=lost, reason=LostReason.RETENTION, time_ms=time_ms)


def test_pop_12_a_loss_that_was_told_twice_counts_once() -> None:
    told = [loss((1, 4), (6, 7), time_ms=9_000), loss(), loss((1, 4))]
    rows = losses.fold([losses.decode(stored(rows_of_lost_records(told)))])
    found = {(row["low"], row["high"], row["lost_time"].timestamp()) for row in rows.to_pylist()}
    assert found == {(1, 4, 5), (6, 7, 9)}
    assert set(rows.column("reason").to_pylist()) == {"retention"}
    assert losses.fold([]).num_rows == 0


@pytest.mark.parametrize(
    "changes", [{"reason": "moths"}, {"ranges": [[1]]}, {"ranges": None}, {"ranges": [[None, 2]]}], ids=str
)
def test_a_damaged_loss_is_named_by_its_offset(changes: dict[str, object]) -> None:
    body = json.dumps({**json.loads(loss((1, 4)).to_json()), **changes}).encode()
    rows = pa.table({"tag": ["lost"], "body": pa.array([body], pa.binary()), "offset": [42]})
    with pytest.raises(Corrupt, match="offset 42"):
        losses.decode(rows)
