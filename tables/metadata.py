"""The metadata log: topics, routes, groups, brokers and exclusive clients as events in one partition (SPEC META-4).

Any process may decide, and the Delta log says whose decision stands. An event is appended only if the log still
ends where the decision was taken; else the loser reads what the winner wrote and decides again:

    refresh --> decide(state) --> append at the offset that the state was folded up to --> fold what was stored
       ^                              |
       '------- lost the race --------'

The state is rebuilt from the table alone (META-3). Messages: key what the event is about (`topic/<name>`,
`group/<name>`, `host/<id>` ...), tag the kind of the event, body its JSON.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from mq.brokers import BrokerEvent, BrokersState, HostRenewed, broker_event_from_json
from mq.errors import Corrupt, OffsetMismatch, Unavailable, Unknown
from mq.group import GroupEvent, GroupsState, group_event_from_json
from mq.moved_keys import MovedKeys, MoveEvent, move_event_from_json
from mq.online import OnlineState
from mq.online_events import OnlineEvent, online_event_from_json
from mq.stored_json import corrupt_when_damaged
from mq.topics import Event, MetaState, TopicDeleted, event_from_json
from tables.encode import ProducerStamp
from tables.log import Batch
from tables.pages import OffsetOutOfRange, pages
from tables.paths import PartitionRef, Space
from tables.schema import INGEST_SCHEMA
from tables.settings import Flush
from tables.warehouse import Warehouse

__all__ = ["META_PARTITION", "AnyEvent", "Meta", "MetaLog", "events_of"]

META_PARTITION: Final = PartitionRef(Space.SYS, "meta", "meta@meta")

#: Each lost race is somebody else's change; so many in a row is no longer bad luck.
_RACES_MAX: Final = 1_000
#: An append without a clear answer is repeated so often before the caller is told that nobody knows.
_UNKNOWN_TRIES: Final = 3

_ROWS: Final = pa.schema([INGEST_SCHEMA.field(name) for name in ("key", "tag", "body")])

AnyEvent = Event | GroupEvent | BrokerEvent | OnlineEvent | MoveEvent

_NO_MOVES: Final = MovedKeys()


@dataclass(frozen=True, slots=True)
class Meta:
    """Everything that the log adds up to. Immutable: `apply_all` returns the next one."""

    topics: MetaState = field(default_factory=MetaState)
    groups: GroupsState = field(default_factory=GroupsState)
    brokers: BrokersState = field(default_factory=BrokersState)
    online: OnlineState = field(default_factory=OnlineState)
    #: Keys that expansions moved, by the id of the topic's life; never modified.
    moved: Mapping[str, MovedKeys] = field(default_factory=dict)

    def apply_all(self, events: Sequence[AnyEvent]) -> Meta:
        """The state after `events`. The families know of each other only that a topic ends."""
        of_topics = [e for e in events if isinstance(e, Event)]
        of_brokers = [e for e in events if isinstance(e, BrokerEvent)]
        of_clients = [e for e in events if isinstance(e, OnlineEvent)]
        groups, moved = self.groups, dict(self.moved)
        waiting: list[GroupEvent] = []
        for event in events:
            if isinstance(event, TopicDeleted):
                groups = groups.apply_all(waiting).without_topic(event.id)
                waiting = []
                moved.pop(event.id, None)
            elif isinstance(event, MoveEvent):
                moved[event.topic_id] = moved.get(event.topic_id, _NO_MOVES).apply_all([event])
            elif isinstance(event, GroupEvent):
                waiting.append(event)
        return Meta(
            topics=self.topics.apply_all(of_topics) if of_topics else self.topics,
            groups=groups.apply_all(waiting) if waiting else groups,
            brokers=self.brokers.apply_all(of_brokers) if of_brokers else self.brokers,
            online=self.online.apply_all(of_clients) if of_clients else self.online,
            moved=moved,
        )

    def moved_keys(self, topic_id: str) -> MovedKeys:
        """The keys of this life of a topic that expansions moved."""
        return self.moved.get(topic_id, _NO_MOVES)


class MetaLog:
    """The metadata of one warehouse. Safe for threads and for any number of processes; blocking."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Open the log, making it if it is not there, and fold all of it."""
        self._log = warehouse.create(META_PARTITION)
        self._lock = threading.Lock()
        # Tells our appends from those of others, so that one without a clear answer can be repeated.
        self._writer_id = f"meta-{uuid.uuid4().hex}"
        self._writer_seq = 0
        self._offset = 0
        self._told_offset = 0
        self._meta = Meta()
        self.refresh()

    @property
    def meta(self) -> Meta:
        """The newest known state, of topics and groups together; never modified, so it may be kept and shared."""
        return self._meta

    def known(self) -> tuple[int, Meta]:
        """The newest known state, and the offset behind the last event that says more than that a host is alive."""
        with self._lock:
            return self._told_offset, self._meta

    @property
    def state(self) -> MetaState:
        """The newest known state of the topics."""
        return self._meta.topics

    @property
    def groups(self) -> GroupsState:
        """The newest known state of the groups."""
        return self._meta.groups

    def refresh(self) -> bool:
        """See what others have written; True if there was anything.

        Raises
        ------
        Corrupt
            The log does not begin at offset 0, or holds what is no event; the state stays as it was.
        """
        with self._lock:
            return self._catch_up()

    def submit(self, decide: Callable[[MetaState], Sequence[Event]]) -> MetaState:
        """Append the events that `decide` makes of the newest topics, and return the topics that hold them.

        `decide` is called again with a newer state each time that another process was faster, so it must depend on
        nothing but its argument. Without events nothing is written. What it raises is passed on: nothing changed.

        Raises
        ------
        Unknown
            The events may be stored; asking again is safe, since a decision sees what is stored.
        Unavailable
            `contention`: too many others were faster; nothing was stored.
        """
        return self._submit(lambda meta: decide(meta.topics)).topics

    def submit_groups(self, decide: Callable[[Meta], Sequence[GroupEvent]]) -> Meta:
        """The same for events of groups, which may be decided by the topics, too."""
        return self.submit_any(decide)

    def submit_any(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> Meta:
        """The same for events of any family, decided by all of the state."""
        return self._submit(decide)

    def _submit(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> Meta:
        with self._lock:
            for _ in range(_RACES_MAX):
                self._catch_up()
                events = decide(self._meta)
                if not events:
                    return self._meta
                if self._append(events):
                    self._catch_up()
                    return self._meta
        raise Unavailable(f"lost {_RACES_MAX} races for the metadata log; try again", code="contention")

    def _append(self, events: Sequence[AnyEvent]) -> bool:
        """Store the events where the state ends; False when others have stored something there."""
        # What cannot be folded must never be stored: no process could start again.
        self._meta.apply_all(events)
        self._writer_seq += 1
        stamp = ProducerStamp(id=self._writer_id, seq=self._writer_seq, indexes=None, total=len(events))
        batch = Batch(_rows(events), stamp)
        tries = 0
        while True:
            try:
                self._log.append([batch], flush=Flush.SYNC, expected_offset=self._offset)
            except OffsetMismatch:
                return False
            except Unknown:
                tries += 1
                if tries == _UNKNOWN_TRIES:
                    raise
            else:
                return True

    def _catch_up(self) -> bool:
        """Fold everything behind the state, page by page; state and offset move together."""
        self._log.refresh()
        began = self._offset
        try:
            for page in pages(self._log, self._offset):
                events = events_of(page.rows)
                self._meta = self._meta.apply_all(events)
                telling = [at for at, event in enumerate(events) if not isinstance(event, HostRenewed)]
                if telling:
                    self._told_offset = self._offset + telling[-1] + 1
                self._offset = page.next_offset
        except OffsetOutOfRange as error:
            raise Corrupt(f"the metadata log: {error.detail}", code="meta_log_torn") from error
        return self._offset > began


def _rows(events: Sequence[AnyEvent]) -> pa.RecordBatch:
    columns = {
        "key": [event.key for event in events],
        "tag": [event.kind for event in events],
        "body": [json.dumps(event.to_json(), separators=(",", ":")).encode() for event in events],
    }
    return pa.RecordBatch.from_pydict(columns, schema=_ROWS)


_FAMILIES: Final[tuple[Callable[[str, object], AnyEvent | None], ...]] = (
    broker_event_from_json,
    group_event_from_json,
    online_event_from_json,
    move_event_from_json,
)


def events_of(rows: pa.Table) -> list[AnyEvent]:
    """The events in rows of the log."""
    columns = [rows.column(name).to_pylist() for name in ("offset", "tag", "body")]
    return [_event(offset, kind, body) for offset, kind, body in zip(*columns, strict=True)]


def _event(offset: int, kind: str, body: bytes) -> AnyEvent:
    where = f"the metadata log at offset {offset}"
    with corrupt_when_damaged(where, code="meta_event_corrupt"):
        value = json.loads(body)
    try:
        for from_json in _FAMILIES:
            event = from_json(kind, value)
            if event is not None:
                return event
        return event_from_json(kind, value)
    except Corrupt as error:
        raise Corrupt(f"{where}: {error.detail}", code=error.code) from error
