"""Records of the queue's own logs survive the way into rows and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deltamq.mq.errors import Corrupt
from deltamq.mq.queue.checkpoint import Checkpoint, LaneKey, Pop, Replaced, Span
from deltamq.mq.queue.delay import Cancelled, Ended
from deltamq.mq.queue.progress import Committed, Delivered, OffsetRecord
from deltamq.mq.queue.revive import LostReason, LostRecord
from deltamq.mq.queue.revive_log import Ack, Done
from deltamq.tables.queue import records

LANE = LaneKey("id-1", "billing", False, "orders@a")
ORDERED = Committed(3, 9, ((11, 12),), (Delivered(10, 2, 5, 7),))
POP = Pop(
    topic="orders",
    topic_id="id-1",
    group="billing",
    epoch=3,
    partition="orders@a",
    pop_time_ms=1_000,
    invisible_ms=60_000,
    revive_queue=2,
)
CHECKPOINT = Checkpoint(pop=POP, span=Span(7, 3, (0, 1, 5), (1, 2, 1)), bit_map=0b010)
CHANGED = Checkpoint(pop=POP, span=Span(8, 1), replaces=Replaced(CHECKPOINT.key, 0b10), dead_reason="no use")

Rows = Callable[[Sequence[Any]], pa.RecordBatch]
Back = Callable[[pa.Table], Sequence[Any]]


def _stored(rows: pa.RecordBatch, base: int) -> pa.Table:
    """The rows as the log gives them back."""
    return pa.table(rows).append_column("offset", pa.array(np.arange(base, base + rows.num_rows)))


@pytest.mark.parametrize(
    ("rows_of", "back", "sent"),
    [
        (records.rows_of_records, records.records_of, [Ack(CHECKPOINT.key, 0b101, 61_000), Done(CHECKPOINT.key, 1, 9)]),
        (
            records.rows_of_offset_records,
            records.offset_records_of,
            [
                OffsetRecord(
                    lane=LANE, topic="orders", committed=Committed(3, 9, ((11, 12),), (Delivered(10, 2, 5, 7),))
                )
            ],
        ),
        (
            records.rows_of_lost_records,
            records.lost_records_of,
            [
                LostRecord(
                    lane=LANE, topic="orders", ranges=((1, 4), (6, 7)), reason=LostReason.RETENTION, time_ms=5_000
                )
            ],
        ),
        (
            records.rows_of_delay_marks,
            records.delay_marks_of,
            [Cancelled("delay@a", 4, "m-1"), Ended("delay@a", ((0, 3), (5, 6)))],
        ),
    ],
    ids=["revive", "offsets", "lost", "marks"],
)
def test_records_come_back_as_they_were(rows_of: Rows, back: Back, sent: Sequence[Any]) -> None:
    assert back(_stored(rows_of(sent), 40)) == sent


def test_pop_06_a_checkpoint_knows_where_it_lies_and_when_it_is_due() -> None:
    rows = records.rows_of_records([CHECKPOINT, CHANGED])
    found = records.records_of(_stored(rows, 40))
    assert [one.revive_offset for one in found if isinstance(one, Checkpoint)] == [40, 41]
    assert [getattr(one, "span", None) for one in found] == [CHECKPOINT.span, CHANGED.span]
    assert rows.column("deliver_time").cast(pa.int64()).to_pylist() == [60_000_000, 60_000_000]


@pytest.mark.parametrize(
    ("rows_of", "back", "good"),
    [
        (records.rows_of_records, records.records_of, CHECKPOINT),
        (records.rows_of_delay_marks, records.delay_marks_of, Cancelled("delay@a", 4, "m-1")),
    ],
)
@pytest.mark.parametrize(("tag", "body"), [("ck", b"{"), ("ck", b"[]"), ("what", b"{}"), ("ended", b'{"ranges": 1}')])
def test_a_damaged_record_is_named_by_its_offset(
    rows_of: Rows, back: Back, good: object, tag: str, body: bytes
) -> None:
    rows = rows_of([good, good])
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True))}
    columns["tag"], columns["body"] = pa.array([good_tag(rows), tag]), pa.array([rows["body"][0].as_py(), body])
    with pytest.raises(Corrupt, match="offset 41"):
        back(_stored(pa.RecordBatch.from_pydict(columns), 40))


def good_tag(rows: pa.RecordBatch) -> str:
    tag: str = rows["tag"][0].as_py()
    return tag
