"""The partitions that a streaming read covers: opened once, and refreshed between batches.

    metadata log  --followed-->  topics, their ids, their partitions
    commit logs   --followed-->  first and end offset, live files

A refresh costs one look for the next commit file of each log, whatever the length of the logs. On object stores, where
each look is a request, logs are looked at less often, and seldomer and seldomer while there is nothing, and several at
once. The metadata is read before the logs, so a sealed segment of a logical queue has all its messages when the next
segment is first read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import groupby
from typing import Final

from deltamq.jobs.read.offset_range import selected
from deltamq.jobs.read.options import ReadOptions, Strategy
from deltamq.jobs.read.stored_partition import StoredPartition, StoredTable
from deltamq.jobs.read.topics import Catalog, TopicPartition
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import NotFound
from deltamq.mq.meta.fold import Meta
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.delta.creation import check_no_data
from deltamq.tables.delta.snapshot import PartitionNotFound
from deltamq.tables.log.follow import LogFollower
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.metadata import MetaFollower
from deltamq.tables.store.store import Store

#: Milliseconds between two looks for news, where a look takes microseconds.
_LOOK_MS: Final = 10
#: The largest share of time spent on looking; with more partitions, looks are less frequent.
_LOOK_SHARE: Final = 0.025
#: Milliseconds between two looks for news, where each look is a request: at first, most, and how many times more after
#: each look that finds nothing.
_REMOTE_LOOK_MS: Final = 1_000
_REMOTE_LOOK_MS_MAX: Final = 2_000
_SLOWER: Final = 1.2
_REMOTE_LOOKS_AT_ONCE: Final = 16
#: Milliseconds between two listings of folders, which show the topics if there is no metadata log.
_FOLDERS_MS: Final = 1_000


class FollowedTable:
    """One table of one life of a topic; it may not exist yet.

    The constructor raises `Corrupt` if there are data files without a log: a topic whose log is gone is not empty.
    """

    def __init__(self, store: Store, clock: Clock, partition: TopicPartition) -> None:
        self.partition = partition
        self._store = store
        self._clock = clock
        self._log: LogFollower | None = None
        if not self._open():
            # Only here: a table that did not exist is looked for again and again, and has its log before any data.
            check_no_data(store, partition.ref.folder)

    def _open(self) -> bool:
        try:
            self._log = LogFollower(self._store, self.partition.ref.folder, clock=self._clock)
        except PartitionNotFound:
            return False
        return True

    def refresh(self) -> bool:
        """Read new commits; return True if there were any."""
        return self._open() if self._log is None else self._log.refresh()

    def as_part(self, partition: TopicPartition) -> FollowedTable:
        """Return the follower of the same table after it was sealed, which changes `partition`."""
        assert partition.ref == self.partition.ref, "the table is the same"
        changed = copy(self)
        changed.partition = partition
        return changed

    @property
    def stored(self) -> StoredTable:
        """The table's content as of the last look."""
        if self._log is None:
            return StoredTable.without_files(self.partition)
        log = self._log
        return StoredTable(
            self.partition,
            log.min_offset,
            log.end_offset,
            log.files,
            schema_json=log.schema_json,
            is_rendered=log.is_rendered,
        )


class FollowedPartition:
    """One partition, as readers see it, of one life of a topic: its tables, oldest first."""

    def __init__(self, topic_id: str, tables: Sequence[FollowedTable]) -> None:
        self.topic_id = topic_id
        self.tables = tuple(tables)

    @property
    def partition(self) -> TopicPartition:
        """The newest table, which has the partition's names."""
        return self.tables[-1].partition

    @property
    def key(self) -> tuple[str, str]:
        """The topic's name and the partition's name."""
        return self.partition.key

    @property
    def stored(self) -> StoredPartition:
        """The partition's content as of the last look."""
        return StoredPartition(tuple(table.stored for table in self.tables))

    @property
    def end_offset(self) -> int:
        """The next offset to be appended."""
        table = self.tables[-1].stored
        return table.end + table.partition.delta


class FollowedTopics:
    """The partitions that the options select, as of the last look; for one thread."""

    def __init__(self, options: ReadOptions, *, clock: Clock = SYSTEM_CLOCK, store: Store | None = None) -> None:
        """Open everything; raise `NotFound` if a named topic or partition does not exist.

        `store` holds the tables; by default the store of the option `warehouse`.
        """
        self._options = options
        self._clock = clock
        self.store = store or storage(options.warehouse)
        self._meta = _meta_of(self.store, clock)
        self._threads = None if self.store.cheap_look else ThreadPoolExecutor(_REMOTE_LOOKS_AT_ONCE)
        self._followed: dict[tuple[str, str], FollowedPartition] = {}
        self._tables: dict[PartitionRef, FollowedTable] = {}
        self._ids: dict[str, str] = {}
        self._selected_ms = 0
        self._looked_ms = 0
        self._pause_ms: float = _REMOTE_LOOK_MS
        self._select(list(selected(self.catalog(), options)))

    @property
    def warehouse_id(self) -> str:
        """The id of this warehouse; empty without a metadata log."""
        return "" if self._meta is None else self._meta.warehouse_id

    @property
    def meta(self) -> Meta | None:
        """The metadata as of the last look."""
        return None if self._meta is None else self._meta.meta

    @property
    def partitions(self) -> Mapping[tuple[str, str], FollowedPartition]:
        """The partitions by topic and name, in the order of topics and routes."""
        return self._followed

    def topics(self) -> set[str]:
        """Return the names of all existing topics, selected or not."""
        return set(self.catalog().topics())

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the current topic of this name; None if none of its partitions is followed."""
        return self._ids.get(topic)

    def refresh(self) -> bool:
        """Look for news of topics and partitions; return True if there was any."""
        now = self._clock.boot_ms()
        changed = self._meta.refresh() if self._meta is not None else now - self._selected_ms >= _FOLDERS_MS
        if changed:
            changed = self._select(list(self._still_selected()))
        if self._threads is None:
            news = [table.refresh() for table in self._tables.values()]
        else:
            news = list(self._threads.map(FollowedTable.refresh, self._tables.values()))
        self._looked_ms = now
        found = changed or any(news)
        self._pause_ms = _REMOTE_LOOK_MS if found else min(_SLOWER * self._pause_ms, _REMOTE_LOOK_MS_MAX)
        return found

    def wait_for_news(self, until_ms: int) -> bool:
        """Look repeatedly until there is news, or the boot clock reaches `until_ms`; return True for news.

        On object stores it looks once a second, or less often if it found nothing, and sleeps in between.
        """
        while (left_ms := until_ms - self._clock.boot_ms()) > 0:
            if not self.is_due:
                time.sleep(left_ms / 1_000)
                return False
            began = time.perf_counter()
            if self.refresh():
                return True
            pause_s = max(_LOOK_MS / 1_000, (time.perf_counter() - began) / _LOOK_SHARE)
            time.sleep(min(pause_s, left_ms / 1_000))
        return False

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again; always true if looks are cheap."""
        return self._threads is None or self._clock.boot_ms() - self._looked_ms >= self._pause_ms

    def readable_to(self, key: tuple[str, str]) -> int | None:
        """Return the offset before which a partition may be read now; None: there is no such limit (SPEC ROUTE-9)."""
        if self._meta is None or not self._meta.meta.access:
            return None
        catalog, now_ms = self.catalog(), self._clock.wall_us() // 1_000
        for table in self._followed[key].tables:
            if not catalog.is_readable(table.partition, now_ms):
                return table.stored.low + table.partition.delta
        return None

    def catalog(self) -> Catalog:
        """Return all topics as of the last look."""
        return Catalog(self.store, None if self._meta is None else self._meta.meta)

    def _still_selected(self) -> Iterator[TopicPartition]:
        """The selected partitions of existing topics; a stream notices a deleted topic by its position."""
        catalog, options = self.catalog(), self._options
        existing = catalog.topics()
        if options.strategy is Strategy.PATTERN:
            names = [topic for topic in existing if re.fullmatch(options.pattern, topic)]
        elif options.strategy is Strategy.SUBSCRIBE:
            names = [topic for topic in options.topics if topic in existing]
        else:
            names = [topic for topic in options.assigned if topic in existing]
        for topic in names:
            wanted = options.assigned.get(topic)
            for partition in catalog.partitions(topic):
                if wanted is None or any(name in wanted for name in partition.names):
                    yield partition

    def _select(self, partitions: list[TopicPartition]) -> bool:
        """Follow only these partitions; return True if that changes anything."""
        catalog, before, tables = self.catalog(), self._followed, self._tables
        self._followed, self._tables = {}, {}
        for key, segments in groupby(partitions, key=lambda partition: partition.key):
            topic_id = catalog.topic_id(key[0])
            made = [self._table(partition, topic_id, tables, before.get(key)) for partition in segments]
            known = before.get(key)
            if known is None or (known.topic_id, known.tables) != (topic_id, tuple(made)):
                known = FollowedPartition(topic_id, made)
            self._followed[key] = known
        self._ids = {topic: followed.topic_id for (topic, _), followed in self._followed.items()}
        self._selected_ms = self._clock.boot_ms()
        return list(self._followed.values()) != list(before.values())

    def _table(
        self,
        partition: TopicPartition,
        topic_id: str,
        tables: Mapping[PartitionRef, FollowedTable],
        before: FollowedPartition | None,
    ) -> FollowedTable:
        """The present follower of a table stays if it is of the same life of its topic."""
        known = tables.get(partition.ref)
        if known is None or before is None or before.topic_id != topic_id:
            known = FollowedTable(self.store, self._clock, partition)
        elif known.partition != partition:
            known = known.as_part(partition)
        self._tables[partition.ref] = known
        return known


def _meta_of(store: Store, clock: Clock) -> MetaFollower | None:
    try:
        return MetaFollower(store, clock)
    except NotFound:
        return None
