"""The metadata log: topics, routes, groups, brokers and exclusive clients as events in one partition (SPEC META-4).

Any process may decide, and the Delta log determines whose decision stands. An event is appended only if the log still
ends at the offset for which the decision was made; otherwise the process reads what the winner wrote and decides again:

    decide(state) --> append at the offset that the state was folded up to --> fold what was stored
       ^  ^               |
       |  '-- refresh <---+-- lost the race
       '----- refresh <-- refused, or nothing to do: by the newest state, perhaps not

Changes that wait together share one append: each is decided on the state after the ones before it.

The state is rebuilt only from the table (META-3), from the last snapshot on (`mq.meta.snapshot`). An append that makes
SNAPSHOT_EVENTS events since the last snapshot also appends the next one, and `maintain` removes what lies before the
last but one. Messages: the key names what the event is about (`topic/<name>`, `group/<name>`, `host/<id>` ...), the tag
is the kind of the event, the body its JSON.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.errors import Corrupt, DeltaMQError, OffsetMismatch, Unavailable, Unknown
from deltamq.mq.meta.features import FeatureOn
from deltamq.mq.meta.fold import AnyEvent, Meta, event_from_json, event_to_json, parts_told
from deltamq.mq.meta.group import GroupEvent, GroupsState
from deltamq.mq.meta.snapshot import MetaSnapshot
from deltamq.mq.meta.topics import Event, MetaState
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import PartitionNotFound, load
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.follow import LogFollower
from deltamq.tables.log.paging import NotStored, pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.schema import INGEST_SCHEMA
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import Store

META_PARTITION: Final = PartitionRef(Space.SYS, "meta", "meta@meta")

#: Number of events after which the next snapshot is due. Reading them at a start takes about a tenth of a second; three
#: processes that renew their leases write this many in three hours.
SNAPSHOT_EVENTS: Final = 10_000
#: Lost races in a row after which a decision is given up; each is a change by another process.
RACES_MAX: Final = 1_000
#: Number of tries of an append whose outcome is not known, before `Unknown` is raised.
_UNKNOWN_TRIES: Final = 3

#: Header of events that an audited act added, with the act's id. The fold does not look at it.
ACT_HEADER: Final = "act"
_ROWS: Final = pa.schema([INGEST_SCHEMA.field(name) for name in ("key", "tag", "body")])
_COLUMNS: Final = ["offset", "tag", "body"]


class _Folded(msgspec.Struct, frozen=True):
    """The state up to an offset. Immutable: `after` returns the next one."""

    meta: Meta = msgspec.field(default_factory=Meta)
    offset: int = 0
    #: For each part of the state, the offset behind the last event that is about it; never modified.
    told: Mapping[str, int] = msgspec.field(default_factory=dict)
    #: The offsets of the last snapshot and of the one before it; 0 for none.
    snapshot_at: int = 0
    previous: int = 0

    def after(self, rows: pa.Table, next_offset: int) -> _Folded:
        """Return the state after rows of the log; the last snapshot among them replaces everything before it."""
        last = _last_snapshot(rows)
        if last is None:
            return self._with(rows, next_offset)
        at = int(rows.column("offset")[last].as_py())
        stored = _snapshot(at, rows.column("body")[last].as_py())
        begun = _Folded(stored.meta.over(self.meta), at + 1, stored.told, at, stored.previous)
        return begun._with(rows.slice(last + 1), next_offset)

    def _with(self, rows: pa.Table, next_offset: int) -> _Folded:
        events = _events_of(rows)
        told = self.told_after(events)
        return _Folded(self.meta.apply_all(events), next_offset, told, self.snapshot_at, self.previous)

    def told_after(self, events: Sequence[AnyEvent]) -> Mapping[str, int]:
        told = dict(self.told)
        for offset, event in enumerate(events, start=self.offset + 1):
            told.update(dict.fromkeys(parts_told(event), offset))
        return told


class Change:
    """A change of the metadata that somebody wants; `MetaLog.submit_all` sets what became of it."""

    __slots__ = ("act", "after", "decide", "error", "events")

    def __init__(self, decide: Callable[[Meta], Sequence[AnyEvent]], act: str | None = None) -> None:
        """`decide` may be called several times, each time with a newer state, and on another thread.

        It returns the change's events for a state, or raises why it is refused. `act` is as in `MetaLog.submit_any`.
        """
        self.decide = decide
        self.act = act
        self.events: Sequence[AnyEvent] = ()
        #: The state after its events.
        self.after = Meta()
        #: Why it was refused; then nothing of it is stored.
        self.error: Exception | None = None

    def decided(self, meta: Meta) -> Meta:
        """Decide by this state, and return the state after it."""
        self.events, self.after, self.error = (), meta, None
        try:
            events = self.decide(meta)
            # Events that cannot be folded must never be stored: no process could start again.
            self.events, self.after = events, meta.apply_all(events) if events else meta
        except Exception as error:
            self.error = error
        return self.after


class MetaLog:
    """The metadata of one warehouse. Safe for threads and for any number of processes; blocking."""

    def __init__(
        self, warehouse: Warehouse, *, snapshot_events: int = SNAPSHOT_EVENTS, races_max: int = RACES_MAX
    ) -> None:
        """Open the log, and create it if it does not exist; fold it from its last snapshot on."""
        self._log = warehouse.create(META_PARTITION)
        self._store = warehouse.store
        self._lock = threading.Lock()
        # The producer id of our appends, with which an append whose outcome is not known can be repeated.
        self._writer_id = f"meta-{uuid.uuid4().hex}"
        self._writer_seq = 0
        self._snapshot_events = snapshot_events
        self._races_max = races_max
        self._trimmed_to = 0
        #: Why the log cannot be folded; None while it can.
        self._torn: DeltaMQError | None = None
        self._log.refresh()
        self._folded = self._rebuilt()

    @property
    def warehouse_id(self) -> str:
        """The id of this warehouse, which stays when its folder is moved."""
        return self._log.table_id

    @property
    def meta(self) -> Meta:
        """The newest known state of everything; never modified, so it may be kept and shared."""
        return self._folded.meta

    @property
    def offset(self) -> int:
        """The offset up to which the newest known state is folded."""
        return self._folded.offset

    @property
    def stopped(self) -> DeltaMQError | None:
        """The error for which the log can neither be read nor written any more; None while it serves."""
        return self._log.stopped or self._torn

    def known(self) -> tuple[Mapping[str, int], Meta]:
        """Return for each part of the state the offset behind the last event about it, and the newest known state."""
        folded = self._folded
        return folded.told, folded.meta

    @property
    def state(self) -> MetaState:
        """The newest known state of the topics."""
        return self._folded.meta.topics

    @property
    def groups(self) -> GroupsState:
        """The newest known state of the groups."""
        return self._folded.meta.groups

    def refresh(self) -> bool:
        """Fold what other processes have written; return whether there was anything.

        Raises
        ------
        Corrupt
            Events are missing from the log, or a row is not an event; the state stays as it was.
        Unavailable
            `store_gone`: the folder is not there; or the store does not answer.
        """
        with self._lock:
            return self._catch_up()

    def submit(self, decide: Callable[[MetaState], Sequence[Event]]) -> MetaState:
        """Append the events that `decide` returns for the newest topics, and return the topics after these events.

        `decide` is called again with a newer state each time that another process was faster, so it must depend on
        nothing but its argument. Without events nothing is written. If `decide` raises, nothing is written either.

        Raises
        ------
        Unknown
            The events may be stored; calling again is safe, because the next decision sees what is stored.
        Unavailable
            `contention`: other processes were faster too many times in a row; nothing was stored.
        """
        return self._submit(lambda meta: decide(meta.topics)).topics

    def submit_groups(self, decide: Callable[[Meta], Sequence[GroupEvent]]) -> Meta:
        """Append events of groups as `submit` does; `decide` gets the whole state, and the new one is returned."""
        return self.submit_any(decide)

    def submit_any(self, decide: Callable[[Meta], Sequence[AnyEvent]], act: str | None = None) -> Meta:
        """Append events of any kind as `submit` does; `decide` gets the whole state, and the new one is returned.

        `act` is the id of the audited act that they are part of; it is stored beside them, for `acts_done`.
        """
        return self._submit(decide, act)

    def acts_done(self, acts: Collection[str]) -> tuple[set[str], int]:
        """Return the acts that have events in the log, and the time (us) from which on the log has all events.

        Reads the whole log: for the few acts of processes that were killed.
        """
        done = set[str]()
        with self._lock:
            self._log.refresh()
            files = self._log.files
            for file in files:
                rows = self._log.file_columns(file, ["headers"])
                for headers in rows.column("headers").drop_null().to_pylist():
                    done.update(value for name, value in headers if name == ACT_HEADER and value in acts)
        # Where the beginning was removed, the first file may lack what was appended before its last row.
        return done, files[0].append_max_us if files and files[0].start > 0 else 0

    def _submit(self, decide: Callable[[Meta], Sequence[AnyEvent]], act: str | None = None) -> Meta:
        change = Change(decide, act)
        self.submit_all([change])
        if change.error is not None:
            raise change.error
        return change.after

    def submit_all(self, changes: Sequence[Change], *, look: bool = False) -> None:
        """Store the events of all changes with one append, each change decided on the state after the ones before it.

        What became of each is in the change: a refused one keeps no other from being stored. `look` reads what other
        processes have written in any case.

        Raises
        ------
        Unknown
            The events of all changes may be stored, or none are.
        Unavailable
            `contention`: as in `submit`; also raises as `refresh` does.
        """
        with self._lock:
            is_decided = not look and self._is_decided(changes)
            for _ in range(self._races_max):
                if not is_decided:
                    self._catch_up()
                    self._is_decided(changes)
                if not any(change.events for change in changes):
                    return
                if self._append(changes):
                    self._fold_stored(changes)
                    return
                is_decided = False
        raise Unavailable(f"lost {self._races_max} races for the metadata log; try again", code="contention")

    def _is_decided(self, changes: Sequence[Change]) -> bool:
        """Decide all by the folded state; return whether each has events, which only this state allows to be stored."""
        meta = self._folded.meta
        for change in changes:
            meta = change.decided(meta)
        return all(change.events for change in changes)

    def _append(self, changes: Sequence[Change]) -> bool:
        """Store the events at the offset of the folded state; return False if another process has written there."""
        events = [event for change in changes for event in change.events]
        acts = [change.act for change in changes for _ in change.events]
        snapshot = self._due_snapshot(events, changes[-1].after)
        stored = [*events, *snapshot]
        self._writer_seq += 1
        stamp = ProducerStamp(id=self._writer_id, seq=self._writer_seq, indexes=None, total=len(stored))
        batch = Batch(_rows(stored, [*acts, *(None for _ in snapshot)]), stamp)
        tries = 0
        while True:
            try:
                self._log.append([batch], flush=Flush.SYNC, expected_offset=self._folded.offset)
            except OffsetMismatch:
                return False
            except Unknown:
                tries += 1
                if tries == _UNKNOWN_TRIES:
                    raise
            else:
                return True

    def _due_snapshot(self, events: Sequence[AnyEvent], after: Meta) -> list[MetaSnapshot | FeatureOn]:
        """Return the snapshot of `after` to append behind `events`; an empty list if the last one is recent enough.

        The features that are on follow it once more, as events: releases before features pass over the parts of a
        snapshot that they do not know, and stop at an event that they do not know (SPEC META-5).
        """
        folded = self._folded
        if folded.offset + len(events) - folded.snapshot_at < self._snapshot_events:
            return []
        snapshot = MetaSnapshot(meta=after, previous=folded.snapshot_at, told=folded.told_after(events))
        return [snapshot, *(FeatureOn(name=name, says=says) for name, says in after.features.on.items())]

    def maintain(self) -> bool:
        """Remove events that no start needs, and do the partition's upkeep; return whether anything was done.

        Only for writers. The events between the last two snapshots stay: for people, and for processes that are a
        little behind.
        """
        unneeded = self._folded.previous
        trimmed = unneeded > self._trimmed_to and self._log.delete_below(unneeded).files > 0
        self._trimmed_to = unneeded
        return self._log.maintain() or trimmed

    def _catch_up(self) -> bool:
        """Read what others have written, and fold it; return whether there was anything behind the state."""
        self._log.refresh()
        # A commit that is not there looks like no news, also where the disk is not mounted.
        if self._store.cheap_look and self._store.stamp(META_PARTITION.folder) is None:
            raise Unavailable(
                f"{META_PARTITION.folder} is not there: is the warehouse's disk mounted?", code="store_gone"
            )
        began = self._folded.offset
        self._fold_known(())
        return self._folded.offset > began

    def _fold_stored(self, changes: Sequence[Change]) -> None:
        """Fold what was stored of these changes, and tell each the state after it."""
        ends = list(accumulate((len(change.events) for change in changes), initial=self._folded.offset))
        states = {ends[0]: self._folded.meta} | self._fold_known(ends)
        for change, end in zip(changes, ends[1:], strict=True):
            change.after = states[end]

    def _fold_known(self, stops: Sequence[int]) -> dict[int, Meta]:
        """Fold everything behind the state, page by page; return the state at each of these offsets.

        State and offset change together.
        """
        try:
            return self._fold_on(stops)
        except Corrupt as error:
            self._torn = error
            raise

    def _fold_on(self, stops: Sequence[int]) -> dict[int, Meta]:
        states: dict[int, Meta] = {}
        try:
            for page in pages(self._log, self._folded.offset):
                rows = page.rows
                for stop in sorted({*(s for s in stops if s < page.next_offset), page.next_offset}):
                    count = max(0, stop - self._folded.offset)
                    if count:
                        self._folded = self._folded.after(rows.slice(0, count), stop)
                        rows = rows.slice(count)
                        states[stop] = self._folded.meta
        except NotStored as error:
            if self._log.min_offset <= self._folded.offset:
                raise Corrupt(f"the metadata log: {error.detail}", code="meta_log_torn") from error
            # While this process slept, others removed events that it has not read.
            self._folded = self._rebuilt()
        return states

    def _rebuilt(self) -> _Folded:
        return _folded(self._log.rows_of([file]).select(_COLUMNS) for file in reversed(tuple(self._log.files)))


def _rows(events: Sequence[AnyEvent | MetaSnapshot], acts: Sequence[str | None]) -> pa.RecordBatch:
    """Return the rows of events, each with the act that it is part of, if any."""
    columns: dict[str, list[object]] = {
        "key": [event.key for event in events],
        "tag": [event.kind for event in events],
        "body": [event.to_json() if isinstance(event, MetaSnapshot) else event_to_json(event) for event in events],
    }
    if not any(acts):
        return pa.RecordBatch.from_pydict(columns, schema=_ROWS)
    columns["headers"] = [None if act is None else [(ACT_HEADER, act)] for act in acts]
    return pa.RecordBatch.from_pydict(columns, schema=_ROWS.append(INGEST_SCHEMA.field("headers")))


def _events_of(rows: pa.Table) -> list[AnyEvent]:
    columns = [rows.column(name).to_pylist() for name in _COLUMNS]
    return [_event(offset, kind, body) for offset, kind, body in zip(*columns, strict=True)]


def _event(offset: int, kind: str, body: bytes) -> AnyEvent:
    with _at(offset):
        return event_from_json(kind, body)


def _snapshot(offset: int, body: bytes) -> MetaSnapshot:
    with _at(offset):
        return MetaSnapshot.from_json(body)


@contextmanager
def _at(offset: int) -> Iterator[None]:
    """Add the offset to errors about damaged events."""
    try:
        yield
    except Corrupt as error:
        raise Corrupt(f"the metadata log at offset {offset}: {error.detail}", code=error.code) from error


def _last_snapshot(rows: pa.Table) -> int | None:
    positions = np.flatnonzero(pc.equal(rows.column("tag"), MetaSnapshot.kind).to_numpy())
    return int(positions[-1]) if positions.size else None


def _folded(newest_first: Iterable[pa.Table]) -> _Folded:
    """Return the state that the rows of all files add up to; files before the last snapshot are not read.

    Raises
    ------
    Corrupt
        There is no snapshot, and the log does not begin at offset 0.
    """
    needed: list[pa.Table] = []
    for rows in newest_first:
        needed.append(rows)
        if _last_snapshot(rows) is not None:
            break
    else:
        if needed and needed[-1].column("offset")[0].as_py() > 0:
            raise Corrupt("the metadata log has lost its beginning, but holds no snapshot", code="meta_log_torn")
    folded = _Folded()
    for rows in reversed(needed):
        folded = folded.after(rows, int(rows.column("offset")[-1].as_py()) + 1)
    return folded


def read_meta(store: Store) -> Meta | None:
    """Return the newest metadata of a warehouse, read-only; None if there is no metadata log."""
    folder = META_PARTITION.folder
    try:
        snapshot = load(store, folder)
    except PartitionNotFound:
        return None
    reader = FileReader(store, folder, RowCache(0))
    files = (pa.concat_tables(reader.groups(file, file.start, file.end, _COLUMNS)) for file in reversed(snapshot.files))
    return _folded(files).meta


class MetaFollower:
    """The metadata of a warehouse for a long-lived reader: opened once, then kept current; nothing is written.

    For one thread. The constructor raises `PartitionNotFound` if there is no metadata log.
    """

    def __init__(self, store: Store, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = LogFollower(store, META_PARTITION.folder, clock=clock)
        self._reader = FileReader(store, META_PARTITION.folder, RowCache(0))
        self._folded = self._rebuilt()

    @property
    def warehouse_id(self) -> str:
        """The id of this warehouse, which stays when its folder is moved."""
        return self._log.table_id

    @property
    def meta(self) -> Meta:
        """The newest known state; never modified."""
        return self._folded.meta

    @property
    def told(self) -> Mapping[str, int]:
        """For each part of the state, the offset behind the last event about it."""
        return self._folded.told

    def refresh(self) -> bool:
        """Fold what was appended since the last call; return whether any is about topics, queues or groups."""
        if not self._log.refresh():
            return False
        before = self._folded
        if self._log.min_offset <= before.offset:
            for rows in self._rows_from(before.offset):
                self._folded = self._folded.after(rows, int(rows.column("offset")[-1].as_py()) + 1)
        else:
            # Events that were not read yet have been removed, because a snapshot replaces them.
            self._folded = self._rebuilt()
        told = self._folded.told
        return any(told.get(part, 0) > before.told.get(part, 0) for part in ("topics", "static", "groups"))

    def _rows_from(self, offset: int) -> list[pa.Table]:
        files = [file for file in self._log.files if file.end > offset]
        return [
            pa.concat_tables(self._reader.groups(file, max(offset, file.start), file.end, _COLUMNS)) for file in files
        ]

    def _rebuilt(self) -> _Folded:
        return _folded(
            pa.concat_tables(self._reader.groups(file, file.start, file.end, _COLUMNS))
            for file in reversed(self._log.files)
        )
