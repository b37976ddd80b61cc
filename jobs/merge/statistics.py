"""The source of the MERGE into `state/group_statistics`: the minutes in a batch, and old ones to be forgotten.

Repeated records of a minute count once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit

from deltamq.jobs.merge.batch import MergeInput, folded_in_one_task, marked
from deltamq.jobs.merge.record_columns import checked, columns_of, required
from deltamq.mq.statistics import Consumed
from deltamq.tables.queue.records import statistics_of
from deltamq.tables.schema import TIME
from deltamq.tables.state.schema import GROUP_STATISTICS_SCHEMA, STATISTICS_KEY

#: How long the table keeps a minute.
KEPT: Final = timedelta(days=7)
#: The columns of numbers that only grow within a minute.
COUNTS: Final = Consumed.__struct_fields__
#: A row of `state/group_statistics` without the column that the MERGE derives.
BATCH_SCHEMA: Final = pa.schema([column for column in GROUP_STATISTICS_SCHEMA if column.name != "merged_at"])
_NAMES: Final = ("group", "topic", "topic_id", "broker", "process")
_SCHEMA: Final = pa.schema(
    [
        ("minute_ms", pa.int64()),
        *((name, pa.string()) for name in _NAMES),
        ("consumed", pa.struct([(name, pa.int64()) for name in COUNTS])),
    ]
)


def decode(rows: pa.Table) -> pa.Table:
    """Return a row for each record in `rows(tag, body, offset)`; raise `Corrupt`, with the offset, for another row."""
    return checked(rows, _decode, statistics_of)


def _decode(rows: pa.Table) -> pa.Table:
    fields = columns_of(rows.column("body").combine_chunks(), _SCHEMA)
    required(fields, *_SCHEMA.names)
    columns = {"minute": pc.multiply(fields.column("minute_ms"), 1_000).cast(TIME)}
    columns |= {name: fields.column(name) for name in _NAMES}
    counted = fields.column("consumed")
    # A number that is 0 may be left out.
    columns |= {name: pc.fill_null(pc.struct_field(counted, name), 0) for name in COUNTS}
    return pa.table({name: columns[name] for name in BATCH_SCHEMA.names}).cast(BATCH_SCHEMA)


def fold(parts: Iterable[pa.Table]) -> pa.Table:
    """Return each minute of a group in a topic, broker and process once, with the highest numbers."""
    table = pa.concat_tables([BATCH_SCHEMA.empty_table(), *parts]).combine_chunks()
    wanted = [("topic", "max"), *((name, "max") for name in COUNTS)]
    groups = table.group_by(list(STATISTICS_KEY), use_threads=False).aggregate(wanted)
    named = groups.rename_columns([*STATISTICS_KEY, *(name for name, _ in wanted)])
    return named.select(BATCH_SCHEMA.names).cast(BATCH_SCHEMA)


def statistics_source(batch: MergeInput) -> DataFrame:
    """Return the source's rows, not evaluated yet; a group in a topic makes one record a minute for each broker."""
    oldest = lit(batch.now - KEPT)
    new = folded_in_one_task(batch, decode, fold, BATCH_SCHEMA).where(col("minute") >= oldest)
    gone = batch.session.read.format("delta").load(batch.location).where(col("minute") < oldest)
    rows = marked(new, batch, forget=False)
    return rows if gone.isEmpty() else rows.union(marked(gone.select(*BATCH_SCHEMA.names), batch, forget=True))
