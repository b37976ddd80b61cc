"""The fold in columns against the fold of the core (SPEC POP-11: any order, any repetition)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.jobs.merge.checkpoint_batch import BATCH_SCHEMA, decode, fold
from deltamq.mq.errors import Corrupt
from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey
from deltamq.mq.queue.revive_log import Ack, CheckpointState, Done, Record, record_to_json
from deltamq.mq.queue.revive_log import fold as core_fold
from deltamq.tables.queue.records import rows_of_records
from deltamq.tables.state.rows import states_of_rows
from tests.unit.mq.checkpoints import checkpoints, keys
from tests.unit.mq.queue.test_checkpoint import FILTERED, POP

CHECKPOINT = Checkpoint(pop=POP, span=FILTERED)

bits = st.integers(1, 2**32 - 1)
times = st.integers(1, 2**41)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """A log about few checkpoints, so that records meet."""
    stored = draw(st.lists(checkpoints(), max_size=4))
    some = st.sampled_from([*[one.key for one in stored], draw(keys)])
    others = st.lists(st.builds(Ack, some, bits, times) | st.builds(Done, some, bits, times), max_size=12)
    return draw(st.permutations([*stored, *draw(others)]))


def stored_rows(records: Sequence[Record], base: int = 0) -> pa.Table:
    """The records as a log gives them back."""
    rows = pa.table(rows_of_records(records))
    return rows.append_column("offset", pa.array(np.arange(base, base + rows.num_rows)))


def placed(records: Sequence[Record], base: int = 0) -> list[Record]:
    """The records, checkpoints with the place that they have in the log."""
    return [
        replace(one, revive_offset=base + at) if isinstance(one, Checkpoint) else one for at, one in enumerate(records)
    ]


def plain(states: dict[CheckpointKey, CheckpointState]) -> dict[CheckpointKey, CheckpointState]:
    """Without what a row does not keep."""
    return {
        key: replace(one, checkpoint=one.checkpoint and replace(one.checkpoint, replaces=None))
        for key, one in states.items()
    }


def columns(parts: Sequence[pa.Table]) -> dict[CheckpointKey, CheckpointState]:
    folded = fold(parts)
    assert folded.schema == BATCH_SCHEMA
    found = list(states_of_rows(folded))
    assert len(dict(found)) == len(found), "one row for each checkpoint"
    return dict(found)


@given(logs())
def test_pop_11_the_fold_in_columns_is_the_fold_of_the_core(records: list[Record]) -> None:
    assert columns([decode(stored_rows(records))]) == plain(core_fold({}, placed(records)))


@settings(max_examples=settings.default.max_examples // 2)
@given(logs(), st.integers(0, 16), st.randoms(use_true_random=False))
def test_pop_11_pieces_repetition_and_order_do_not_matter(records: list[Record], cut: int, random: Random) -> None:
    whole = decode(stored_rows(records))
    pieces = [decode(stored_rows(records[:cut])), decode(stored_rows(records[cut:], cut)), whole]
    random.shuffle(pieces)
    assert columns(pieces) == columns([whole])


def test_no_records_make_no_rows() -> None:
    assert fold([]).num_rows == 0
    assert fold([decode(stored_rows([CHECKPOINT]).slice(0, 0))]).num_rows == 0


def test_pop_09_one_record_takes_a_message_over_from_another() -> None:
    changed = CHECKPOINT.changed(2, now_ms=2_000, invisible_ms=10_000, revive_queue=1)
    found = columns([decode(stored_rows([changed]))])
    assert found[CHECKPOINT.key] == CheckpointState(replaced=0b100)
    assert found[changed.key].open == 1


def body(**changes: object) -> tuple[str, dict[str, object]]:
    tag, value = record_to_json(CHECKPOINT)
    return tag, {name: item for name, item in {**json.loads(value), **changes}.items() if item is not ...}


DAMAGE: dict[str, tuple[str, object]] = {
    "an unknown kind": ("later", {}),
    "no object": ("ck", [1]),
    "an empty body": ("ck", None),
    "text for a number": body(so="7"),
    "a fraction": body(it=1.5),
    "a negative offset": body(so=-1),
    "a negative invisible time": body(it=-1),
    "a key without its group": body(c=...),
    "a checkpoint without its topic": body(t=...),
    "no message": body(n=0, bm=0),
    "too many messages": body(n=33, d=...),
    "a bit without a message": body(bm=0b1000),
    "differences for too few": body(d=[0, 1]),
    "differences that do not start at 0": body(d=[1, 2, 3]),
    "differences that do not ascend": body(d=[0, 5, 5]),
    "an empty difference": body(d=[0, None, 5]),
    "attempts for too few": body(a=[1, 2]),
    "an empty attempt": body(a=[1, None, 2]),
    "a replaced key without bits": body(rp={**body()[1], "b": 0}),
    "a replaced key that is none": body(rp={"b": 1}),
    "an ack without bits": ("ack", {**body()[1], "rt": 1}),
    "an ack with bits that no checkpoint has": ("ack", {**body()[1], "b": 2**32, "rt": 1}),
    "an ack without a time": ("ack", {**body()[1], "b": 1}),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_record_is_named_by_its_offset(name: str) -> None:
    tag, value = DAMAGE[name]
    good = stored_rows([CHECKPOINT, Ack(CHECKPOINT.key, 1, 61_000)])
    bad = pa.table(
        {"tag": [tag], "body": pa.array([b"" if value is None else json.dumps(value).encode()], pa.binary())}
    )
    rows = pa.concat_tables([good.select(["tag", "body"]), bad, good.select(["tag", "body"])])
    rows = rows.append_column("offset", pa.array(np.arange(40, 45)))
    with pytest.raises(Corrupt, match="offset 42"):
        decode(rows)


def test_a_number_that_no_column_holds_is_damage() -> None:
    tag, value = body(e=2**70)
    rows = pa.table({"tag": [tag], "body": pa.array([json.dumps(value).encode()], pa.binary()), "offset": [7]})
    with pytest.raises(Corrupt, match="couldn't parse"):
        decode(rows)
