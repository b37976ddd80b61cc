"""Spark's side of the groups: the queue's SQL views (`jobs.sql.views`), queried with `groups.sql`.

The state tables are as of the last merge, so "nothing is left" is certain only when these hold, in this order:

1. the groups have committed everything (an offset passes a message that is done, or whose checkpoint is stored);
2. all checkpoints that were stored by then are merged;
3. no checkpoint has a message in flight (a redelivery is stored in a retry partition, or as a dead letter, before its
   checkpoint records it), and nothing has changed since 1;
4. no retry partition has grown meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltamq.jobs.flights.group_account import GroupAccount, GroupsLeft
from deltamq.jobs.flights.statements import statements
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.sql.views import register_views
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.queue.retry import RetryTopic
from deltamq.tables.config import load
from deltamq.tables.delta.snapshot import load as load_snapshot
from deltamq.tables.log.warehouse import refs
from deltamq.tables.paths import Space
from deltamq.tables.queue.merge_plan import merged_to
from deltamq.tables.queue.refs import REVIVE_LOG
from deltamq.tables.state.schema import POP_CHECKPOINTS, STATE_TABLES
from deltamq.tables.state.table import state_transactions
from deltamq.tables.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


QUERIES: Final = Path(__file__).with_name("groups.sql")


def queries() -> dict[str, str]:
    """Return the named statements of `groups.sql`."""
    return statements(QUERIES)


class GroupReader:
    """Queries the groups of one warehouse."""

    def __init__(self, spark: SparkSession, warehouse: str) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._store = storage(warehouse)
        self._queries = queries()
        self._tables: list[str] | None = None

    def left(self, topic: str, groups: Sequence[str]) -> GroupsLeft:
        """Return the messages that are left for each group, in the order of checks of the module's docstring."""
        self._set(topic, groups)
        first = self._rows("lanes")
        left = _left(first, groups)
        if any(left.values()) or None in left.values() or _unmerged(self._store):
            return GroupsLeft(left=left, moving=True)
        second = self._rows("lanes")
        retried = {row["partition"]: row["end_offset"] for row in second if row["retry"]}
        moving = second != first or self._ends_of_retries(topic, groups) != retried
        return GroupsLeft(left=_left(second, groups), moving=moving)

    def accounts(self, topic: str, groups: Sequence[str]) -> list[GroupAccount]:
        """Return Spark's account of each group; a group that the tables do not have has consumed nothing."""
        self._set(topic, groups)
        left = _left(self._rows("lanes"), groups)
        read_topic(self._spark, topic, warehouse=self._warehouse).createOrReplaceTempView("messages")
        consumed, retried, dead = (self._by_group(name) for name in ("consumed", "retried", "dead"))
        return [
            GroupAccount(
                group=group,
                consumed=consumed.get(group, {}).get("messages", 0),
                acknowledged=consumed.get(group, {}).get("acknowledged", 0),
                dead=dead.get(group, {}).get("messages", 0),
                dead_distinct=dead.get(group, {}).get("origins", 0),
                dead_crc=dead.get(group, {}).get("bodies_crc", 0),
                retried=retried.get(group, {}).get("messages", 0),
                left=left[group] or 0,
            )
            for group in groups
        ]

    def _set(self, topic: str, groups: Sequence[str]) -> None:
        """Create the views; the queue's views again if a state table was created meanwhile, since they need it."""
        tables = [table for table in STATE_TABLES if state_transactions(self._store, table) is not None]
        if tables != self._tables:
            register_views(self._spark, load(overrides={"warehouse.uri": self._warehouse}))
            self._tables = tables
        pairs = [(group, topic) for group in groups]
        self._spark.createDataFrame(pairs, "group STRING, topic STRING").createOrReplaceTempView("consuming")

    def _rows(self, name: str) -> list[Row]:
        return self._spark.sql(self._queries[name]).collect()

    def _by_group(self, name: str) -> Mapping[str, Mapping[str, int]]:
        return {row["group"]: row.asDict() for row in self._rows(name)}

    def _ends_of_retries(self, topic: str, groups: Sequence[str]) -> dict[str, int]:
        names = {RetryTopic(group, topic).storage_name for group in groups}
        retries = [ref for ref in refs(self._store, Space.RETRY) if ref.topic in names]
        return {ref.name: load_snapshot(self._store, ref.folder).end_offset for ref in retries}


def _left(lanes: Sequence[Row], groups: Sequence[str]) -> dict[str, int | None]:
    """None: no lane of the group is known."""
    left: dict[str, int | None] = dict.fromkeys(groups)
    for row in lanes:
        left[row["group"]] = (left[row["group"]] or 0) + row["lag"] + row["in_flight"]
    return left


def _unmerged(store: Store) -> int:
    logs = [ref for ref in refs(store, Space.SYS) if ref.topic.startswith(REVIVE_LOG)]
    ends = {ref: load_snapshot(store, ref.folder).end_offset for ref in logs}
    merged = merged_to(store, [POP_CHECKPOINTS])
    return sum(max(0, end - merged.get(ref, 0)) for ref, end in ends.items())
