"""The tables and views that a catalog should have for a warehouse.

| name                              | kind  | what                                                                   |
|-----------------------------------|-------|------------------------------------------------------------------------|
| `topic_<topic>`                   | view  | the messages of a topic, with `topic` and `partition`                  |
| `values_<topic>`                  | view  | of a typed topic, the fields of its values, then `mq_key`, `mq_offset` |
| `quarantine_<topic>`              | view  | of a typed topic, what did not fit, with `code`, `field` and `reason`  |
| `partition_<topic>_at_<broker>`   | table | a partition; of a static topic a segment, with the offsets stored      |
| `dead_letters`                    | view  | the dead letters of all groups, with `group`, `reason` and `state`     |
| `dlq_<group>_at_<broker>`         | table | a group's dead letters on a broker; `..._marks`: which were sent back  |
| `state_<table>`                   | table | written by the merge job: `state_groups`, `state_consumer_offsets`...  |
| `partitions`                      | table | every partition with its offsets, as of the last run                   |
| `lag`, `in_flight`, `lost`, `brokers`, `clients`, `moves` | view | as the temporary views of `jobs.sql.views`      |
| `audit_records`                   | table | administrative acts and refusals, as they are stored                   |
| `history_records`                 | table | samples of lag, rates and other gauges, as they are stored             |
| `audit`, `refusals`, `access_history` | view | acts, refusals by minute, and access rules over time                  |
| `lane_lag`, `logical_queues`      | view  | the same, for static topics                                            |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from deltamq.jobs.read.identifiers import (
    dead_letters_name,
    literal,
    partition_name,
    quarantine_name,
    quoted,
    topic_name,
    values_name,
)
from deltamq.jobs.read.stored_partition import StoredTable
from deltamq.jobs.read.topics import Catalog, TopicPartition
from deltamq.jobs.read.typed_columns import quarantine_columns, values_columns, values_of_topic
from deltamq.jobs.sql.catalog_plan import CatalogEntry
from deltamq.jobs.sql.views import VIEWS
from deltamq.mq.names import broker_of
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.tables.log.warehouse import refs
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import AUDIT, HISTORY, dead_marks_ref, is_dead_marks
from deltamq.tables.schema import DELTA_SCHEMA, MESSAGE_SCHEMA
from deltamq.tables.state.schema import STATE_TABLES
from deltamq.tables.state.table import read_state_log
from deltamq.tables.store.store import Store
from deltamq.tables.typed_row import INVALID, VALUE

#: The state table of partitions and their offsets, relative to the warehouse.
PARTITIONS: Final = "state/partitions"
_VIEWS: Final = {
    "lane_lag": "How far groups are behind in each table, by group and stored partition, as of the last merge.",
    "logical_queues": "The logical queues of static topics, as of the last merge and catalog run.",
    "lag": "How far groups are behind, by group and partition, as of the last merge and catalog run.",
    "in_flight": "Messages that are given away and not acknowledged, as of the last merge.",
    "lost": "Ranges of offsets that groups could not have.",
    "brokers": "Brokers, with the process that has each.",
    "clients": "Clients of exclusive groups, with their partitions.",
    "audit": "What administrators did: each act once.",
    "refusals": "What was refused, by minute.",
    "history": "Samples of lag, rates and other gauges.",
    "access_history": "Access rules, with the time for which each was in force.",
    "moves": "Moves of keys by expansions, and whether groups have passed them.",
}
#: The tables of the warehouse's own partitions.
_SYSTEM: Final = {
    "audit_records": (AUDIT, "What administrators did and what was refused, as it is stored."),
    "history_records": (HISTORY, "Samples of gauges, as they are stored."),
}
_COLUMNS: Final = ", ".join(quoted(name) for name in MESSAGE_SCHEMA.names)
_TOPIC_ROW: Final = MESSAGE_SCHEMA.append(pa.field("topic", pa.string())).append(pa.field("partition", pa.string()))
#: The newest marks of dead letters by offset. Ranges are joined, not spread out: one mark may be about a million.
_MARKED: Final = """
    SELECT d.offset, max(m.tag = 'deleted') AS is_deleted,
           max_by(struct(m.time_ms, m.by), m.at) FILTER (WHERE m.tag = 'sent_back') AS sent
    FROM {table} d JOIN (
        SELECT tag, at, one.time_ms, one.by, range[0] AS low, range[1] AS high
        FROM (
            SELECT tag, offset AS at,
                   from_json(cast(body AS string), 'ranges ARRAY<ARRAY<BIGINT>>, time_ms BIGINT, by STRING') AS one
            FROM {marks}
        ) LATERAL VIEW explode(one.ranges) AS range
    ) m ON d.offset >= m.low AND d.offset < m.high
    GROUP BY d.offset
"""
_UNMARKED: Final = """
    SELECT CAST(NULL AS bigint) AS offset, false AS is_deleted,
           CAST(NULL AS struct<time_ms: bigint, by: string>) AS sent WHERE false
"""
_DEAD: Final = (
    "SELECT {group} AS `group`, headers['" + DEAD_REASON_HEADER + "'] AS reason, reconsume_times AS attempts, "
    "origin.topic AS topic, origin.partition AS origin_partition, origin.offset AS origin_offset, "
    "{partition} AS partition, d.offset, message_id, key, tag, headers, body, born_time, append_time AS dead_time, "
    "CASE WHEN k.is_deleted THEN 'deleted' WHEN k.sent IS NOT NULL THEN 'sent_back' ELSE 'new' END AS state, "
    "timestamp_millis(k.sent.time_ms) AS sent_back_time, nullif(k.sent.by, '') AS sent_back_by "
    "FROM {table} d LEFT JOIN ({marked}) k ON k.offset = d.offset"
)


def entries_of(store: Store, schema: str) -> list[CatalogEntry]:
    """Return everything that `schema` (SCHEMA or CATALOG.SCHEMA) should hold for a warehouse now."""
    return [*_topics(store, schema), *_dead_letters(store, schema), *_state(store, schema)]


def _topics(store: Store, schema: str) -> Iterator[CatalogEntry]:
    catalog = Catalog(store)
    existing, typed_topics = set(refs(store, Space.TOPICS)), set(catalog.typed_topics())
    for topic in catalog.topics():
        selects = []
        typed = topic in typed_topics
        tables: list[tuple[StoredTable, str]] = []
        for partition in catalog.partitions(topic):
            ref = partition.ref
            if ref not in existing:
                continue  # its table is created with its first message
            table = partition_name(ref.topic, ref.name, ref.generation)
            part = f", a segment of queue {partition.queue}" if partition.queue else ""
            yield _table(store, table, ref, f"Partition {ref.name} of topic {topic}{part}.")
            labels = f"{literal(topic)} AS topic, {literal(partition.name)} AS partition"
            selects.append(f"SELECT {_columns(partition)}, {labels} FROM {_qualified(schema, table)}")
            stored = StoredTable.load(store, partition) if typed else None
            if stored is not None and stored.value is not None:
                tables.append((stored, _qualified(schema, table)))
        query = " UNION ALL ".join(selects) or _nothing(_TOPIC_ROW)
        yield CatalogEntry(name=topic_name(topic), about=f"The messages of topic {topic}.", query=query)
        if tables:
            yield from _typed_views(catalog, topic, tables)


def _typed_views(catalog: Catalog, topic: str, tables: Sequence[tuple[StoredTable, str]]) -> Iterator[CatalogEntry]:
    """From the first message with columns on: before, there is no table to read."""
    values = values_of_topic(catalog, topic)
    assert values is not None, "a table has some"
    typed, invalid = [], []
    for stored, table in tables:
        partition = stored.partition
        made = {"partition": literal(partition.name)}
        made |= {"offset": f"`offset` + {partition.delta}"} if partition.delta else {}
        assert stored.value is not None, "others were left out"
        columns = ", ".join(values_columns(stored.value, values, made))
        typed.append(f"SELECT {columns} FROM {table} WHERE {VALUE} IS NOT NULL")
        columns = ", ".join(quarantine_columns(made))
        invalid.append(f"SELECT {columns} FROM {table} WHERE {INVALID} IS NOT NULL")
    about = f"The values of topic {topic}: the fields of its schema."
    yield CatalogEntry(name=values_name(topic), about=about, query=" UNION ALL ".join(typed))
    about = f"Messages that do not fit the schema of topic {topic}."
    yield CatalogEntry(name=quarantine_name(topic), about=about, query=" UNION ALL ".join(invalid))


def _columns(partition: TopicPartition) -> str:
    """As readers see them: segments of a logical queue have logical offsets."""
    return _COLUMNS.replace("`offset`", f"`offset` + {partition.delta} AS `offset`", 1) if partition.delta else _COLUMNS


def _nothing(schema: pa.Schema) -> str:
    fields = from_arrow_schema(schema).fields
    nulls = ", ".join(f"CAST(NULL AS {field.dataType.simpleString()}) AS {quoted(field.name)}" for field in fields)
    return f"SELECT {nulls} WHERE false"


def _dead_letters(store: Store, schema: str) -> Iterator[CatalogEntry]:
    selects, found = [], list(refs(store, Space.DLQ))
    existing = set(found)
    for ref in found:
        if is_dead_marks(ref):
            continue
        table = dead_letters_name(ref.topic, ref.name, ref.generation)
        yield _table(store, table, ref, f"Dead letters of group {ref.topic}, {ref.name}.")
        group, partition = literal(ref.topic), literal(ref.name)
        stored, marked, marks_of = _qualified(schema, table), _UNMARKED, _marks_ref(ref)
        if marks_of in existing:
            marks = dead_letters_name(ref.topic, ref.name, ref.generation, marks=True)
            yield _table(store, marks, marks_of, f"What was sent back or deleted of the dead letters of {ref.topic}.")
            marked = _MARKED.format(table=stored, marks=_qualified(schema, marks))
        selects.append(_DEAD.format(group=group, partition=partition, table=stored, marked=marked))
    if selects:
        yield CatalogEntry(name="dead_letters", about="Dead letters of all groups.", query=" UNION ALL ".join(selects))


def _marks_ref(dead: PartitionRef) -> PartitionRef:
    return dead_marks_ref(dead.topic, dead.generation, broker_of(dead.name))


def _table(store: Store, name: str, ref: PartitionRef, about: str) -> CatalogEntry:
    return CatalogEntry(name=name, about=about, location=store.uri(ref.folder), form=DELTA_SCHEMA)


def _state(store: Store, schema: str) -> Iterator[CatalogEntry]:
    """The existing state tables and the views over them, in which a missing state table has no rows."""
    about = "Every partition with its offsets, as of the last catalog run."
    yield CatalogEntry(name="partitions", about=about, location=store.uri(PARTITIONS))
    empty = {}
    existing = set(refs(store, Space.SYS))
    for name, (ref, about) in _SYSTEM.items():
        if ref in existing:
            yield _table(store, name, ref, about)
        else:
            empty[name] = f"({_nothing(MESSAGE_SCHEMA)})"
    for table, columns in STATE_TABLES.items():
        name = f"state_{table.rpartition('/')[2]}"
        if read_state_log(store, table) is None:
            empty[name] = f"({_nothing(columns)})"
        else:
            form = ",".join(columns.names)
            yield CatalogEntry(name=name, about=f"DeltaMQ's {table}.", location=store.uri(table), form=form)
    for name, about in _VIEWS.items():
        yield CatalogEntry(name=name, about=about, query=_catalog_query(VIEWS[f"mq_{name}"], schema, empty))


def _catalog_query(query: str, schema: str, empty: Mapping[str, str]) -> str:
    """A temporary view's query over the catalog's tables; `empty` has the queries that stand for missing tables."""
    # The catalog has a table where the views of a session read the partitions again.
    query = query.replace("mq_stored_partitions", "mq_partitions")
    return re.sub(r"\bmq_(\w+)", lambda name: empty.get(name[1]) or _qualified(schema, name[1]), query).strip()


def _qualified(schema: str, name: str) -> str:
    return quoted(*schema.split("."), name)
