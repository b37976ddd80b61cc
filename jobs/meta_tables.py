"""The metadata log as tables: topics, routes and groups, replaced as a whole when it has moved (SPEC META-4)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from jobs.state_tables import STATE_TABLES, create_state_table, frame_of
from mq.group import Group
from mq.names import split_partition
from mq.retry import policy_to_json
from mq.topics import Topic
from tables.metadata import Meta, MetaLog
from tables.state_schema import GROUPS, ROUTES, TOPICS
from tables.state_table import state_transactions
from tables.store import Store

__all__ = ["meta_rows", "replace_meta_tables"]

_APP: Final = "mq.merge.meta"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def replace_meta_tables(session: SparkSession, store: Store, log: MetaLog) -> int:
    """Bring the three tables to where the log is; returns how many were replaced.

    A table's transaction number is the end of the log that it was made from, so nothing is planned: a kill leaves some
    of them as they were, for the next run.
    """
    log.refresh()
    offset, meta = log.known()
    behind = [table for table in (TOPICS, ROUTES, GROUPS) if _reached(store, table) < offset]
    for table in behind:
        create_state_table(session, store, table)
        frame = frame_of(session, meta_rows(table, meta), partitions=1)
        writer = frame.write.format("delta").mode("overwrite")
        writer.option("txnAppId", _APP).option("txnVersion", str(offset)).save(store.uri(table))
    return len(behind)


def _reached(store: Store, table: str) -> int:
    return (state_transactions(store, table) or {}).get(_APP, 0)


def meta_rows(table: str, meta: Meta) -> pa.Table:
    """The rows of one of the tables."""
    topics = sorted(meta.topics.topics.values(), key=lambda one: one.name)
    if table == TOPICS:
        rows = [_topic(topic) for topic in topics]
    elif table == ROUTES:
        rows = [row for topic in topics for row in _routes(topic)]
    else:
        rows = [_group(group) for _, group in sorted(meta.groups.groups.items())]
    return pa.Table.from_pylist(rows, schema=STATE_TABLES[table])


def _topic(topic: Topic) -> dict[str, object]:
    settings = topic.settings
    return {
        "topic": topic.name,
        "topic_id": topic.id,
        "generation": topic.generation,
        "partitions": len(topic.route.partitions),
        "route_epoch": topic.route.epoch,
        "order_strategy": settings.order_strategy,
        "retention_ms": settings.retention_ms,
        "message_type": settings.message_type,
        "flush": settings.flush,
        "created_time": _time(topic.created_ms),
    }


def _routes(topic: Topic) -> list[dict[str, object]]:
    """A row for each range of logical partitions, and one for each partition that owns none."""
    route = topic.route
    owned = [(index, low, high) for low, high, index in route.owners]
    without = [(index, None, None) for index in set(range(len(route.partitions))) - {index for index, _, _ in owned}]
    return [
        {
            "topic": topic.name,
            "topic_id": topic.id,
            "route_epoch": route.epoch,
            "partition": route.partitions[index],
            "broker": split_partition(route.partitions[index])[1],
            "number": index,
            "lp_low": low,
            "lp_high": high,
        }
        for index, low, high in [*owned, *without]
    ]


def _group(group: Group) -> dict[str, object]:
    settings = group.settings
    return {
        "group": group.name,
        "epoch": group.epoch,
        "consume_strategy": settings.consume_strategy,
        "ordered": settings.order if isinstance(settings.order, str) else str(settings.order).lower(),
        "consume_from": settings.consume_from.to_json(),
        "max_attempts": settings.max_attempts,
        "retry_policy": json.dumps(policy_to_json(settings.retry_policy)),
        "invisible_ms": settings.invisible_ms,
        "created_time": _time(group.created_ms),
    }


def _time(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)
