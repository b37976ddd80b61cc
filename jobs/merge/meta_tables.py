"""The metadata log as tables, each replaced as a whole when its part of the metadata has changed (SPEC META-4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec import structs
from pyspark.sql import SparkSession

from deltamq.jobs.merge.state_tables import frame_of, signed
from deltamq.mq.meta.access import Access
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.static_topics import queues_of
from deltamq.mq.meta.topic_settings import limit_of, window_of
from deltamq.mq.names import broker_of
from deltamq.mq.queue.retry import policy_to_json
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.mappings import QueueMapping
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.state.schema import (
    ACLS,
    ALLOCATIONS,
    BROKERS,
    CLIENTS,
    GROUPS,
    KEYS,
    MOVES,
    PRINCIPALS,
    QUEUE_MAPPINGS,
    QUOTAS,
    ROUTES,
    SCHEMAS,
    STATE_TABLES,
    TOPICS,
)
from deltamq.tables.state.table import StateLog, open_state_log
from deltamq.tables.state.taken_back import take_back
from deltamq.tables.store.store import Store

_APP: Final = "mq.merge.meta"
_MS: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LEAST_MS: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_GREATEST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)

Row = dict[str, object]


class MetaTables:
    """The metadata tables of one warehouse; remembers the state of each."""

    def __init__(self, store: Store, log: MetaLog) -> None:
        self._store = store
        self._log = log
        self._logs: dict[str, StateLog] = {}

    def replace(self, session: Callable[[], SparkSession], now: datetime) -> int:
        """Bring the tables up to the log's end; return the number of tables that were replaced.

        A table's transaction number is the offset behind its last event, so no plan is needed: a kill leaves
        some tables as they were, for the next run. `session` is called only if a table is replaced.
        """
        self._log.refresh()
        part_ends, meta = self._log.known()
        for table in META_TABLES:
            self._look(table, int(now.timestamp() * _MS))
        ends = {table: max(part_ends.get(part, 0) for part in kind.parts) for table, kind in META_TABLES.items()}
        behind = {table: end for table, end in ends.items() if self._logs[table].transactions.get(_APP, 0) < end}
        for table, end in behind.items():
            with signed(session(), self._logs[table]):
                self._write(session(), table, meta, end)
        return len(behind)

    def _look(self, table: str, now_ms: int) -> None:
        """Undo what another engine did to a table."""
        log = open_state_log(self._store, table, STATE_TABLES[table], now_ms, self._logs.get(table))
        if log.foreign:
            take_back(self._store, table, log, {}, now_ms)
            log = open_state_log(self._store, table, STATE_TABLES[table], now_ms)
        self._logs[table] = log

    def _write(self, session: SparkSession, table: str, meta: Meta, end: int) -> None:
        frame = frame_of(session, meta_rows(table, meta), partitions=1)
        # A later release may add columns.
        writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.option("txnAppId", _APP).option("txnVersion", str(end)).save(self._store.uri(table))


def meta_rows(table: str, meta: Meta) -> pa.Table:
    """Return the rows of one of the tables."""
    return pa.Table.from_pylist(list(META_TABLES[table].rows(meta)), schema=STATE_TABLES[table])


def _topics(meta: Meta) -> Iterator[Row]:
    for name, topic in sorted(meta.topics.topics.items()):
        settings = topic.settings
        yield {
            "topic": name,
            "topic_id": topic.id,
            "generation": topic.generation,
            "partitions": len(topic.route.partitions),
            "route_epoch": topic.route.epoch,
            "order_strategy": settings.order_strategy,
            "retention_ms": settings.retention_ms,
            "retention_bytes": limit_of(settings),
            "message_type": settings.message_type,
            "flush": settings.flush,
            "commit_window_ms": window_of(settings),
            "created_time": _time(topic.created_ms),
            "static": topic.static is not None,
            "total_queues": None if topic.static is None else topic.static.total,
            "mapping_epoch": None if topic.static is None else topic.static.epoch,
            "partitioner": settings.partitioner,
        }


def _routes(meta: Meta) -> Iterator[Row]:
    """A row for each range of logical partitions, and one for each partition that owns none."""
    for name, topic in sorted(meta.topics.topics.items()):
        route = topic.route
        owners = route.owners if topic.settings.partitioner == "lp" else ()
        owned = [(index, low, high) for low, high, index in owners]
        without = [
            (index, None, None) for index in set(range(len(route.partitions))) - {index for index, _, _ in owned}
        ]
        for index, low, high in [*owned, *without]:
            yield {
                "topic": name,
                "topic_id": topic.id,
                "route_epoch": route.epoch,
                "partition": route.partitions[index],
                "broker": broker_of(route.partitions[index]),
                "number": index,
                "lp_low": low,
                "lp_high": high,
                **_access(meta.access.of(topic.id, route.partitions[index])),
            }


def _groups(meta: Meta) -> Iterator[Row]:
    for name, group in sorted(meta.groups.groups.items()):
        settings = group.settings
        yield {
            "group": name,
            "epoch": group.epoch,
            "consume_strategy": settings.consume_strategy,
            "ordered": settings.order if isinstance(settings.order, str) else str(settings.order).lower(),
            "consume_from": settings.consume_from.to_json(),
            "max_attempts": settings.max_attempts,
            "retry_policy": json.dumps(policy_to_json(settings.retry_policy)),
            "invisible_ms": settings.invisible_ms,
            "allocation_strategy": settings.allocation_strategy,
            "created_time": _time(group.created_ms),
        }


def _access(access: Access) -> Row:
    """An access whose `access_until` has passed is shown as it was set."""
    return {
        "readable": access.readable,
        "writable": access.writable,
        "access_reason": access.reason or None,
        "access_until": None if access.until_ms is None else _time(access.until_ms),
    }


def _brokers(meta: Meta) -> Iterator[Row]:
    for role, ownership in sorted(meta.brokers.roles.items()):
        host = meta.brokers.owner(role)
        yield {
            "broker": role,
            "epoch": ownership.epoch,
            "host": None if host is None else host.id,
            "address": None if host is None else host.address,
            "stand_in": None if host is None else role != META_ROLE and role not in host.brokers,
            **_access(meta.access.of_broker(role)),
        }


def _clients(meta: Meta) -> Iterator[Row]:
    for name, group in sorted(meta.online.groups.items()):
        for client in sorted(group.clients.values(), key=lambda member: member.id):
            yield {
                "group": name,
                "client": client.id,
                "joined": client.joined,
                "topics": [
                    {"topic": topic, "in_order": subscription.order, "tags": subscription.tags}
                    for topic, subscription in sorted(client.topics.items())
                ],
                "leaving": client.leaving,
                "since_time": _time(client.since_ms),
            }


def _allocations(meta: Meta) -> Iterator[Row]:
    """A row for each partition that has a client, or had one that may still process it."""
    for name, group in sorted(meta.online.groups.items()):
        for topic, allocation in sorted(group.topics.items()):
            for partition in sorted({*allocation.owner, *allocation.earlier}):
                yield {
                    "group": name,
                    "topic": topic,
                    "topic_id": allocation.topic_id,
                    "epoch": allocation.epoch,
                    "partition": partition,
                    "broker": broker_of(partition),
                    "client": allocation.owner.get(partition),
                    "earlier": sorted(allocation.earlier.get(partition, ())),
                }


def _moves(meta: Meta) -> Iterator[Row]:
    for name, topic in sorted(meta.topics.topics.items()):
        for move in meta.moved_keys(topic.id).moves:
            for low, high in move.ranges:
                yield {
                    "topic": name,
                    "topic_id": topic.id,
                    "route_epoch": move.epoch,
                    "source": move.source,
                    "target": move.target,
                    "lp_low": low,
                    "lp_high": high,
                    "end_offset": move.end_offset,
                }


def _queue_mappings(meta: Meta) -> Iterator[Row]:
    """A row for each segment in each broker's mapping, and one for a mapping without segments."""
    for name, topic in sorted(meta.topics.topics.items()):
        if topic.static is None:
            continue
        queues = queues_of(meta, topic)
        for holder, mapping in sorted(meta.mappings(topic.id).by_broker.items()):
            mapping_row: Row = {
                "topic": name,
                "topic_id": topic.id,
                "holder": holder,
                "broker": mapping.broker,
                "epoch": mapping.epoch,
                "total_queues": mapping.total_queues,
                "version": mapping.version,
            }
            segments = list(_segments(holder, mapping, queues))
            yield from ({**mapping_row, **segment} for segment in segments or [{}])


def _segments(holder: str, mapping: QueueMapping, queues: Mapping[int, LogicalQueue]) -> Iterator[Row]:
    for role, chains in (("hosted", mapping.hosted), ("copy", mapping.copies)):
        for index, chain in sorted(chains.items()):
            served = queues.get(index)
            for segment in chain:
                yield {
                    "queue": index,
                    "role": role,
                    "served": role == "hosted" and served is not None and served.leader.broker == holder,
                    "gen": segment.gen,
                    "partition": segment.partition,
                    "logic_offset": segment.logic_offset,
                    "start_offset": segment.start_offset,
                    "end_offset": segment.end_offset,
                    "start_time": _time(segment.start_ms),
                    "end_time": _time(segment.end_ms) if segment.is_sealed else None,
                    "update_time": _time(segment.update_ms),
                }


def _principals(meta: Meta) -> Iterator[Row]:
    for name, account in sorted(meta.auth.principals.items()):
        since_ms = account.disabled_since_ms
        yield {
            "principal": name,
            "note": account.note or None,
            "created_time": _time(account.created_ms),
            "disabled_time": None if since_ms is None else _time(since_ms),
        }


def _keys(meta: Meta) -> Iterator[Row]:
    """A row for each key, without any column of its secret."""
    for id_, key in sorted(meta.auth.keys.items()):
        yield {
            "key_id": id_,
            "principal": key.principal,
            "created_time": _time(key.created_ms),
            "until_time": None if key.until_ms is None else _time(key.until_ms),
        }


def _acls(meta: Meta) -> Iterator[Row]:
    for id_, rule in sorted(meta.auth.rules.items()):
        yield {
            "acl_id": id_,
            "principal": rule.principal,
            "effect": rule.effect,
            "resource": rule.resource,
            "pattern": rule.pattern,
            "verbs": list(rule.verbs),
        }


def _quotas(meta: Meta) -> Iterator[Row]:
    for name, quota in sorted(meta.auth.quotas.items()):
        yield {
            "principal": name,
            "requests_per_s": quota.requests_per_s,
            "bytes_in_per_s": quota.bytes_in_per_s,
            "bytes_out_per_s": quota.bytes_out_per_s,
        }


def _schemas(meta: Meta) -> Iterator[Row]:
    for subject in sorted(meta.schemas.subjects):
        for version in meta.schemas.versions(subject, deleted=True):
            references = [{"name": r.name, "subject": r.subject, "version": r.version} for r in version.references]
            yield {**structs.asdict(version), "references": references}


def _time(ms: int) -> datetime:
    """A time outside the calendar becomes the nearest that it has."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, _LEAST_MS), _GREATEST_MS))


class _Kind(NamedTuple):
    """The function that yields a table's rows, and the parts of `Meta` that it reads."""

    rows: Callable[[Meta], Iterator[Row]]
    parts: tuple[str, ...]


META_TABLES: Final = {
    TOPICS: _Kind(_topics, ("topics",)),
    ROUTES: _Kind(_routes, ("topics", "access")),
    GROUPS: _Kind(_groups, ("groups",)),
    BROKERS: _Kind(_brokers, ("brokers", "access")),
    CLIENTS: _Kind(_clients, ("online",)),
    ALLOCATIONS: _Kind(_allocations, ("online",)),
    MOVES: _Kind(_moves, ("moved",)),
    QUEUE_MAPPINGS: _Kind(_queue_mappings, ("static",)),
    PRINCIPALS: _Kind(_principals, ("auth",)),
    KEYS: _Kind(_keys, ("auth",)),
    ACLS: _Kind(_acls, ("auth",)),
    QUOTAS: _Kind(_quotas, ("auth",)),
    SCHEMAS: _Kind(_schemas, ("schemas",)),
}
