"""Recovery of the queue's state at the start of a process, only from the tables (SPEC META-3, POP-14).

    state/pop_checkpoints   + revive logs behind its watermark, 8 for each broker  --fold-->  checkpoints
    state/consumer_offsets  + offsets logs behind its watermark                    --fold-->  how far each group is

A state table holds what was merged from the logs up to its watermark (`tables.queue.merge_plan`); retention may have
removed that from the logs since. While there is no table, the logs hold everything. Both folds are joins: records may
be folded twice and in any order (see `mq.queue.revive_log`, `mq.queue.progress`). A log that does not exist yet
counts as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import CheckpointKey, LaneKey
from deltamq.mq.queue.progress import Committed, committed_of
from deltamq.mq.queue.revive_log import CheckpointState, fold
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import NotStored, pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.lane_states import LaneStates, lane_states
from deltamq.tables.queue.merge_plan import Stops, merged_stops
from deltamq.tables.queue.records import offset_records_of, records_of
from deltamq.tables.queue.refs import OFFSETS, revive_refs, system_ref
from deltamq.tables.state.rows import CHECKPOINT_COLUMNS, OFFSET_COLUMNS, Progress, committed_of_rows, states_of_rows
from deltamq.tables.state.schema import (
    CONSUMER_OFFSETS,
    CONSUMER_OFFSETS_SCHEMA,
    POP_CHECKPOINTS,
    POP_CHECKPOINTS_SCHEMA,
)
from deltamq.tables.state.table import read_state
from deltamq.tables.store.store import Store


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the lanes of some brokers."""

    #: The groups' progress by the offsets log, in whatever epoch: see `GroupsState.committed_in`.
    committed: Mapping[LaneKey, Committed]
    #: Every remembered checkpoint, of all epochs; states whose checkpoint record has not come yet are left out.
    states: Mapping[LaneKey, LaneStates]

    def of(self, broker: str) -> Recovered:
        """Return the lanes of one of the brokers."""
        return Recovered(
            committed={lane: at for lane, at in self.committed.items() if _is_of(lane.partition, (broker,))},
            states={lane: states for lane, states in self.states.items() if _is_of(lane.partition, (broker,))},
        )


def recover(warehouse: Warehouse, cluster: str, brokers: Sequence[str]) -> Recovered:
    """Return the state of all lanes of `brokers`; blocking.

    Raises
    ------
    Corrupt
        A log or a state table has a row that is not a record of its kind.
    NotStored
        A log lost records that were not merged.
    """
    refs = [ref for broker in brokers for ref in revive_refs(cluster, broker)]
    for last in (False, True):
        rows, stops = _merged_checkpoints(warehouse.store)
        mine = pc.is_in(rows.column("broker"), value_set=pa.array(brokers, pa.string()))
        rows = rows if pc.all(mine).as_py() else rows.filter(mine)
        newer: dict[CheckpointKey, CheckpointState] = {}
        try:
            for ref in refs:
                for page in LogCursor(warehouse, ref, stops.of(ref)).new_rows():
                    newer = fold(newer, records_of(page))
            break
        except NotStored:
            # Records were merged and removed since the state table was read.
            if last:
                raise
    return Recovered(committed=recover_progress(warehouse, cluster, brokers), states=lane_states(rows, newer))


def _merged_checkpoints(store: Store) -> tuple[pa.Table, Stops]:
    columns = (*CHECKPOINT_COLUMNS, "broker")
    state = read_state(store, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA, columns)
    stops = merged_stops(store, POP_CHECKPOINTS, None if state is None else state.transactions)
    empty = pa.schema([POP_CHECKPOINTS_SCHEMA.field(name) for name in columns]).empty_table()
    return empty if state is None else state.rows, stops


def recover_progress(warehouse: Warehouse, cluster: str, brokers: Sequence[str]) -> dict[LaneKey, Committed]:
    """Return only the groups' progress, `Recovered.committed`."""
    for last in (False, True):
        progress, stops = _merged_progress(warehouse)
        committed = {lane: at for lane, (_, at) in progress.items() if _is_of(lane.partition, brokers)}
        try:
            for broker in brokers:
                ref = system_ref(OFFSETS, cluster, broker)
                for rows in LogCursor(warehouse, ref, stops.of(ref)).new_rows():
                    committed = committed_of(committed, offset_records_of(rows))
            break
        except NotStored:
            # Records were merged and removed since the state table was read.
            if last:
                raise
    return committed


class ProgressFollower:
    """Follows the groups' progress in partitions of a broker that another process serves. For one thread, blocking."""

    def __init__(self, warehouse: Warehouse, cluster: str, broker: str) -> None:
        #: The stored progress, in whatever epoch: see `GroupsState.committed_in`. Replaced, never changed.
        self.committed: Mapping[LaneKey, Committed] = {}
        self._warehouse = warehouse
        self._broker = broker
        self._ref = system_ref(OFFSETS, cluster, broker)
        self._cursor: LogCursor | None = None

    def refresh(self) -> None:
        """Read what was stored since the last call; the first call begins with the state table."""
        try:
            self._read_on(self._cursor or self._load())
        except NotStored:
            # Records were merged and removed before they were read.
            self._read_on(self._load())

    def _load(self) -> LogCursor:
        progress, stops = _merged_progress(self._warehouse)
        mine = {lane: at for lane, (_, at) in progress.items() if _is_of(lane.partition, (self._broker,))}
        for lane, at in self.committed.items():
            mine[lane] = at.join(mine[lane]) if lane in mine else at
        self.committed = mine
        self._cursor = LogCursor(self._warehouse, self._ref, stops.of(self._ref))
        return self._cursor

    def _read_on(self, cursor: LogCursor) -> None:
        for rows in cursor.new_rows():
            self.committed = committed_of(self.committed, offset_records_of(rows))


def _merged_progress(warehouse: Warehouse) -> tuple[Progress, Stops]:
    state = read_state(warehouse.store, CONSUMER_OFFSETS, CONSUMER_OFFSETS_SCHEMA, OFFSET_COLUMNS)
    stops = merged_stops(warehouse.store, CONSUMER_OFFSETS, None if state is None else state.transactions)
    return {} if state is None else committed_of_rows(state.rows), stops


def _is_of(partition: str, brokers: Sequence[str]) -> bool:
    return broker_of(partition) in brokers


#: Tells whether a log exists.
IsThere: TypeAlias = Callable[[PartitionRef], bool]


class LogCursor:
    """A reader's position in a log that may not exist yet."""

    def __init__(
        self, warehouse: Warehouse, ref: PartitionRef, offset: int = 0, *, is_there: IsThere | None = None
    ) -> None:
        """`is_there` tells whether the log exists; by default it is looked for at each call."""
        self.ref = ref
        #: The next offset to be read; below 0, the lowest that the log has.
        self.offset = offset
        self._warehouse = warehouse
        self._is_there = is_there or warehouse.exists
        self._log: PartitionLog | None = None

    def new_rows(self) -> Iterator[pa.Table]:
        """Yield the rows that any process has appended since the last call, page by page.

        `offset` passes a page when the next one is requested: a page that the caller failed on is read again.

        Raises
        ------
        NotStored
            Retention has removed rows that were not read.
        """
        if self._log is None:
            if not self._is_there(self.ref):
                return
            self._log = self._warehouse.open_partition(self.ref)
        self._log.refresh()
        if self.offset < 0:
            self.offset = self._log.min_offset
        for page in pages(self._log, self.offset):
            yield page.rows
            self.offset = page.next_offset


class Follower:
    """Follows the checkpoints of some brokers; each call of `refresh` adds new ones. For one thread, blocking."""

    def __init__(
        self, warehouse: Warehouse, cluster: str, brokers: Sequence[str], *, is_there: IsThere | None = None
    ) -> None:
        """`is_there` is as of `LogCursor`: a log that appears has all checkpoints that its acknowledgements are of."""
        #: Every checkpoint that was not forgotten. Callers must not change it.
        self.states: dict[CheckpointKey, CheckpointState] = {}
        self._store = warehouse.store
        self._brokers = frozenset(brokers)
        refs = [ref for broker in brokers for ref in revive_refs(cluster, broker)]
        self._cursors = [LogCursor(warehouse, ref, is_there=is_there) for ref in refs]
        self._loaded = False

    @property
    def positions(self) -> dict[PartitionRef, int]:
        """The offset up to which each log is folded."""
        return {cursor.ref: cursor.offset for cursor in self._cursors}

    def refresh(self) -> set[CheckpointKey]:
        """Fold what was appended since the last call; return the checkpoints that it is about.

        The first call begins with the state table. So does a call for which retention has removed unread records: the
        table has them.

        Raises
        ------
        Corrupt
            A log or the state table has a row that is not a record. What was folded from other logs stays.
        NotStored
            A log lost records that were not merged.
        """
        changed = set() if self._loaded else self._load()
        try:
            self._read_on(changed)
        except NotStored:
            changed |= self._load()
            self._read_on(changed)
        return changed

    def _load(self) -> set[CheckpointKey]:
        """Join the content of the state table; the logs need not be read before its watermark."""
        state = read_state(self._store, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA, CHECKPOINT_COLUMNS)
        self._loaded = True
        stops = merged_stops(self._store, POP_CHECKPOINTS, None if state is None else state.transactions)
        rows = () if state is None else states_of_rows(state.rows)
        part = {key: merged for key, merged in rows if self._is_mine(key)}
        self._join(part)
        for cursor in self._cursors:
            cursor.offset = stops.of(cursor.ref) if stops.gone else max(cursor.offset, stops.of(cursor.ref))
        return set(part)

    def _is_mine(self, key: CheckpointKey) -> bool:
        return broker_of(key.partition) in self._brokers

    def _read_on(self, changed: set[CheckpointKey]) -> None:
        for cursor in self._cursors:
            for rows in cursor.new_rows():
                part = fold({}, records_of(rows))
                changed.update(part)
                self._join(part)

    def _join(self, part: Mapping[CheckpointKey, CheckpointState]) -> None:
        for key, state in part.items():
            known = self.states.get(key)
            self.states[key] = state if known is None else known.join(state)

    def forget(self, keys: Iterable[CheckpointKey]) -> None:
        """Forget checkpoints about which no record can come any more."""
        for key in keys:
            self.states.pop(key, None)
