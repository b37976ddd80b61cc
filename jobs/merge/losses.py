"""The source of the MERGE into `state/lost_messages`: one row for each range of offsets; repeated losses count once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from deltamq.jobs.merge.batch import MergeInput, folded_in_one_task, marked
from deltamq.jobs.merge.record_columns import Damaged, checked, columns_of, required, tuples_of
from deltamq.mq.queue.revive import LostReason
from deltamq.tables.queue.records import lost_records_of
from deltamq.tables.schema import TIME
from deltamq.tables.state.schema import LOST_KEY, LOST_MESSAGES_SCHEMA

#: A row of `state/lost_messages` without the columns that the MERGE derives.
BATCH_SCHEMA: Final = pa.schema(
    [column for column in LOST_MESSAGES_SCHEMA if column.name not in ("broker", "merged_at")]
)
_SCHEMA: Final = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("retry", pa.bool_()),
        ("partition", pa.string()),
        ("ranges", pa.list_(pa.list_(pa.int64()))),
        ("reason", pa.string()),
        ("time_ms", pa.int64()),
    ]
)
_REASONS: Final = pa.array([reason.value for reason in LostReason])


def decode(rows: pa.Table) -> pa.Table:
    """Return a row for each range in `rows(tag, body, offset)`; raise `Corrupt`, with the offset, for another row."""
    return checked(rows, _decode, lost_records_of)


def _decode(rows: pa.Table) -> pa.Table:
    fields = columns_of(rows.column("body").combine_chunks(), _SCHEMA)
    required(fields, *_SCHEMA.names)
    if not pc.all(pc.is_in(fields.column("reason"), value_set=_REASONS), min_count=0).as_py():
        raise Damaged("an unknown reason")
    at, ranges = tuples_of(fields.column("ranges"), 2)
    of_range = fields.take(pa.array(at))
    columns = {name: of_range.column(name) for name in ("group", "topic", "topic_id", "retry", "partition", "reason")}
    columns |= {"low": pa.array(ranges[:, 0]), "high": pa.array(ranges[:, 1])}
    columns["lost_time"] = pc.multiply(of_range.column("time_ms"), 1_000).cast(TIME)
    return pa.table({name: columns[name] for name in BATCH_SCHEMA.names}).cast(BATCH_SCHEMA)


def fold(parts: Iterable[pa.Table]) -> pa.Table:
    """Return each range once, with the time at which its loss was first recorded."""
    table = pa.concat_tables([BATCH_SCHEMA.empty_table(), *parts]).combine_chunks()
    groups = table.group_by(list(LOST_KEY), use_threads=False).aggregate([("topic", "min"), ("lost_time", "min")])
    named = groups.rename_columns([name.removesuffix("_min") for name in groups.column_names])
    return named.select(BATCH_SCHEMA.names).cast(BATCH_SCHEMA)


def loss_source(batch: MergeInput) -> DataFrame:
    """Return the source's rows, not evaluated yet; losses are exceptions, and rarely many."""
    return marked(folded_in_one_task(batch, decode, fold, BATCH_SCHEMA), batch, forget=False)
