"""Sends dead letters back with only storage credentials, in tasks if there are many (SPEC RETRY-3, SPARK-10).

    ranges of the group's dead letters -> tasks: read, filter, group by target, append, mark -> counts

Each dead letter is a request of a producer that is named after the letter's offset, as in the service's replay
(`mq.queue.dead_letters`). So both may replay the same letter, at once or repeatedly, and a partition stores it once,
for as long as it remembers its producers. Then it is marked as sent back (SPEC RETRY-8).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from deltamq.jobs.sink.open_sink import OpenSink, SinkSettings, open_sink
from deltamq.jobs.tasks.items import runner_of
from deltamq.jobs.tasks.known_outcome import until_known
from deltamq.mq.errors import DeltaMQError, Fenced, NotFound, Refused, Unavailable, Unknown
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.dead_letters import LetterMarks, Replay, SentBack, retry_broker
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.fetch import one_record_batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.dead_marks import LETTER_STATES, DeadMarks, mark_ranges, states_at
from deltamq.tables.queue.placement import FenceEpochs, fence_epochs_of
from deltamq.tables.queue.records import rows_of_dead_marks
from deltamq.tables.queue.redelivery_rows import sent_back
from deltamq.tables.queue.refs import dead_marks_ref, dead_ref, retry_ref
from deltamq.tables.queue.waiting_rows import WAITING_COLUMNS
from deltamq.tables.settings import Flush

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Target = Literal["origin", "retry"]
#: Offsets of dead letters in one task.
TASK_OFFSETS_MAX: Final = 50_000
_DELETED: Final = "dead_letter_deleted"
_counts: Final = msgspec.msgpack.Decoder(dict[str, int])


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of dead letters; None: the field excludes no letter."""

    #: The original topics of the letters.
    topics: frozenset[str] | None = None
    message_ids: frozenset[str] | None = None
    #: The time at which they became dead letters, `[since, until)`.
    since: datetime | None = None
    until: datetime | None = None
    #: Offsets by partition of the dead letters.
    offsets: Mapping[str, frozenset[int]] | None = None
    #: The first offset by folder of a partition of dead letters (`Replayed.ends` of an earlier replay).
    start_offsets: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def names_letters(self) -> bool:
        """Whether single dead letters are named, which are sent back in any case."""
        return self.offsets is not None or self.message_ids is not None

    def mask(self, partition: str, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the selected rows of a partition."""
        kept = pc.is_valid(rows.column("offset"))
        if self.offsets is not None:
            kept = pc.and_(kept, _among(rows.column("offset"), self.offsets.get(partition, frozenset())))
        if self.topics is not None:
            kept = pc.and_(kept, _among(pc.struct_field(rows.column("origin"), "topic"), self.topics))
        if self.message_ids is not None:
            kept = pc.and_(kept, _among(rows.column("message_id"), self.message_ids))
        died = rows.column("append_time")
        if self.since is not None:
            kept = pc.and_(kept, pc.greater_equal(died, pa.scalar(self.since, died.type)))
        if self.until is not None:
            kept = pc.and_(kept, pc.less(died, pa.scalar(self.until, died.type)))
        return kept


def _among(column: pa.ChunkedArray, values: frozenset[str] | frozenset[int]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(sorted(values), column.type))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The outcomes of the selected dead letters; a dry run counts only `matched` and `duplicates`."""

    #: Selected and not deleted.
    matched: int = 0
    replayed: int = 0
    #: Sent back by an earlier replay.
    duplicates: int = 0
    #: Counts by code: `topic_not_found`, or the code of the refused append.
    failed: Mapping[str, int] = field(default_factory=dict)
    #: The end offset by folder of a partition of dead letters, where a later replay begins.
    ends: Mapping[str, int] = field(default_factory=dict, compare=False)


class _Parameters(NamedTuple):
    group: str
    to: Target
    chosen: Chosen
    dry_run: bool


class _Work(NamedTuple):
    """One task: offsets `[low, high)` of the dead letters of one broker."""

    settings: SinkSettings
    broker: str
    low: int
    high: int
    parameters: _Parameters


def replay_dead_letters(
    settings: SinkSettings,
    group: str,
    chosen: Chosen,
    *,
    to: Target = "origin",
    dry_run: bool = False,
    spark: SparkSession | None = None,
) -> Replayed:
    """Send a group's dead letters back; they are durable when this returns, and repeating it stores nothing twice.

    Letters that were sent back before go again only if `chosen` names them by offset or id; deleted ones never.

    Parameters
    ----------
    to
        `origin`: to the original topic, for all groups; `retry`: only to this group.
    spark
        Divides the work into tasks; without it, this process does it.

    Raises
    ------
    NotFound
        The group does not exist, or a partition is named that has no dead letters.
    Unavailable, Unknown
        Some may have been sent back; repeating the call is safe.
    """
    if to not in ("origin", "retry"):
        raise Refused("to must be origin or retry", field="to")
    sink = open_sink(settings)
    parameters = _Parameters(group, to, replace(chosen, start_offsets={}), dry_run)
    letters = list(_letters(sink, group, chosen))
    work = [item for some in letters for item in _divided(sink.settings, some, parameters)]
    total: Counter[str] = Counter()
    for counts in runner_of(spark)(work, _replay, _counts):
        total.update(counts)
    if chosen.offsets is not None and chosen == Chosen(offsets=chosen.offsets):
        total["offset_out_of_range"] += sum(map(len, chosen.offsets.values())) - total["matched"] - total[_DELETED]
    known = ("matched", "replayed", "duplicate")
    return Replayed(
        matched=total["matched"],
        replayed=total["replayed"],
        duplicates=total["duplicate"],
        failed={code: count for code, count in sorted(total.items()) if count and code not in known},
        ends={some.folder: some.high for some in letters},
    )


class _Letters(NamedTuple):
    """Dead letters of one broker: offsets `[low, high)`."""

    broker: str
    #: The folder of the letters' partition in the group's current epoch.
    folder: str
    low: int
    high: int


def _letters(sink: OpenSink, group: str, chosen: Chosen) -> Iterator[_Letters]:
    """On every broker that ever existed, since topics of letters may be gone."""
    meta = sink.refresh()
    stored_group = meta.groups.group(group)
    routes = [topic.route.partitions for topic in meta.topics.topics.values()]
    brokers = {*sink.settings.brokers, *meta.brokers.brokers}
    brokers |= {broker_of(name) for route in routes for name in route}
    names = {dead_ref(group, stored_group.epoch, broker).name: broker for broker in sorted(brokers)}
    for partition in chosen.offsets or ():
        if partition not in names:
            detail = f"offsets: there are no dead letters in {partition!r}; the partitions are {', '.join(names)}"
            raise NotFound(detail, code="partition_not_found", field="offsets")
    for partition, broker in names.items():
        ref = dead_ref(group, stored_group.epoch, broker)
        if (chosen.offsets is not None and partition not in chosen.offsets) or not sink.warehouse.exists(ref):
            continue
        log = sink.warehouse.open_partition(ref)
        log.refresh()
        low = max(log.min_offset, chosen.start_offsets.get(ref.folder, 0))
        yield _Letters(broker, ref.folder, low, log.end_offset)


def _divided(settings: SinkSettings, letters: _Letters, parameters: _Parameters) -> Iterator[_Work]:
    for low in range(letters.low, letters.high, TASK_OFFSETS_MAX):
        yield _Work(settings, letters.broker, low, min(low + TASK_OFFSETS_MAX, letters.high), parameters)


def _replay(work: _Work) -> dict[str, int]:
    sink = open_sink(work.settings)
    stored_group = sink.refresh().groups.group(work.parameters.group)
    log = sink.warehouse.open_partition(dead_ref(work.parameters.group, stored_group.epoch, work.broker))
    log.refresh()
    marks = _Marks(sink, dead_marks_ref(work.parameters.group, stored_group.epoch, work.broker), work.parameters.to)
    letters = marks.letters()
    named = work.parameters.chosen.names_letters
    counts: Counter[str] = Counter()
    for page in pages(log, max(work.low, log.min_offset), WAITING_COLUMNS):
        rows = page.rows.filter(pc.less(page.rows.column("offset"), work.high))
        rows = rows.filter(work.parameters.chosen.mask(log.ref.name, rows))
        states = np.array(LETTER_STATES)[states_at(letters, rows.column("offset").to_numpy())]
        counts["matched"] += int(np.sum(states != "deleted"))
        if named:
            counts[_DELETED] += int(np.sum(states == "deleted"))
        else:
            counts["duplicate"] += int(np.sum(states == "sent_back"))
        rows = rows.filter(pa.array((states == "new") | ((states == "sent_back") & named), pa.bool_()))
        if rows.num_rows and not work.parameters.dry_run:
            sender = _Sender(sink, stored_group, log.ref.name, work.parameters.to)
            counts += sender.send(one_record_batch(rows))
            failpoint("replay.before_mark")
            marks.add([at for at, again in sender.stored if not again or letters.sent(at) is None])
        if page.next_offset >= work.high:
            break
    return dict(counts)


class _Marks:
    """The marks of the dead letters of one broker, read once, and added to."""

    def __init__(self, sink: OpenSink, ref: PartitionRef, to: Target) -> None:
        self._sink = sink
        self._ref = ref
        self._to = to

    def letters(self) -> LetterMarks:
        """Return the present marks."""
        if not self._sink.warehouse.exists(self._ref):
            return LetterMarks()
        log = self._sink.warehouse.open_partition(self._ref)
        log.refresh()
        return DeadMarks().follow(log)

    def add(self, offsets: Sequence[int]) -> None:
        """Mark dead letters as sent back; a mark that is stored twice counts once."""
        now_ms = self._sink.warehouse.clock.wall_us() // 1_000
        sent = np.array(sorted(offsets), dtype=np.int64)
        marks = mark_ranges(sent, lambda ranges: SentBack(ranges, self._to, now_ms))
        if marks:
            rows = rows_of_dead_marks(marks)
            until_known(lambda: self._sink.warehouse.create(self._ref).append([Batch(rows)], flush=Flush.SYNC))


class _Destination(NamedTuple):
    """A target of dead letters: a partition of a topic, or without a name the group's retry partition of the topic.

    The partitions of a static topic are its logical queues, whose leader may change before the next try.
    """

    topic: str
    partition: str | None


class _Sender:
    def __init__(self, sink: OpenSink, group: Group, dead: str, to: Target) -> None:
        self._sink = sink
        self._group = group
        self._dead = dead
        self._to = to
        self._topics: dict[str, Topic | None] = {}
        #: The offsets of letters that are stored at their destinations, and whether an earlier replay had stored them.
        self.stored: list[tuple[int, bool]] = []

    def send(self, rows: pa.RecordBatch) -> Counter[str]:
        """Append rows to their destinations; return counts of the outcomes."""
        counts: Counter[str] = Counter()
        by_destination: dict[_Destination, list[int]] = {}
        columns = [rows.column(name).to_pylist() for name in ("offset", "origin", "key")]
        for at, (offset, origin, key) in enumerate(zip(*columns, strict=True)):
            destination = self._destination_of(offset, origin, key)
            if destination is None:
                counts["topic_not_found"] += 1
            else:
                by_destination.setdefault(destination, []).append(at)
        for destination, positions in by_destination.items():
            counts += self._append(destination, rows.take(pa.array(positions)))
        return counts

    def _destination_of(self, offset: int, origin: Mapping[str, str], key: str | None) -> _Destination | None:
        topic = origin["topic"]
        if topic not in self._topics:
            self._topics[topic] = self._sink.meta.state.topics.get(topic)
        if self._topics[topic] is None:
            return None
        if self._to == "retry":
            return _Destination(topic, None)
        _, placement = self._sink.routed(topic)
        home = placement.home_of(topic, origin["partition"], key, offset)
        segment = None if placement.queues is None else placement.queues.of_partition(home)
        return _Destination(topic, home if segment is None else segment.queue.name)

    def _append(self, destination: _Destination, rows: pa.RecordBatch) -> Counter[str]:
        back = sent_back(rows, to_retry=self._to == "retry")
        parts = [RowsPart(1, self._stamp(offset)) for offset in rows.column("offset").to_pylist()]
        try:
            appended = self._stored(destination, back, parts)
        except (Unknown, Unavailable):
            raise
        except DeltaMQError as error:
            return Counter({error.code: rows.num_rows})
        self.stored += zip(rows.column("offset").to_pylist(), appended, strict=True)
        return Counter("duplicate" if stored_before else "replayed" for stored_before in appended)

    def _stamp(self, offset: int) -> ProducerStamp:
        name = Replay(self._group.name, self._group.epoch, self._dead, offset)
        return ProducerStamp(name.producer_id, name.producer_seq, None, 1)

    def _stored(self, destination: _Destination, rows: pa.RecordBatch, parts: Sequence[RowsPart]) -> list[bool]:
        """Return for each row whether it was stored before. A fence is passed once the metadata contains it."""
        until_s = time.monotonic() + self._sink.fenced_s
        return until_known(lambda: self._stored_once(destination, rows, parts, until_s))

    def _stored_once(
        self, destination: _Destination, rows: pa.RecordBatch, parts: Sequence[RowsPart], until_s: float
    ) -> list[bool]:
        while True:
            topic, log, earlier, fence_epochs = self._target(destination)
            left = [at for at, part in enumerate(parts) if not any(_knows(segment, part) for segment in earlier)]
            failpoint("replay.before_append")
            if not left:
                return [True] * len(parts)
            fresh = rows.take(pa.array(left, pa.int64()))
            try:
                done = log.append_rows(
                    fresh if destination.partition is None else self._sink.codecs.arrived(topic, fresh),
                    [parts[at] for at in left],
                    flush=Flush.SYNC,
                    fence_epochs=fence_epochs,
                )
            except Fenced as error:
                self._sink.learn(topic, error, until_s)
            else:
                failpoint("replay.after_append")
                stored = dict(zip(left, (row.duplicate for row in done), strict=True))
                return [stored.get(at, True) for at in range(len(parts))]

    def _target(self, destination: _Destination) -> tuple[Topic, PartitionLog, list[PartitionLog], FenceEpochs]:
        """The log to append to, and the logs in which an earlier try may have stored the rows."""
        while True:
            topic, placement = self._sink.routed(destination.topic)
            if not placement.ahead:
                break
            self._sink.seal(topic)
        if destination.partition is not None:
            name = placement.partitions[placement.number_of(topic.name, destination.partition, "partition")]
            earlier = [self._sink.log(topic, segment) for segment in placement.segments_before(name)]
            for log in earlier:
                log.refresh()
            return topic, self._sink.log(topic, name), earlier, placement.fence_epochs[name]
        broker = retry_broker(self._dead, topic.route.partitions)
        ref = retry_ref(self._group.name, self._group.epoch, topic.name, topic.generation, broker)
        epochs = fence_epochs_of(self._sink.meta.meta.brokers, broker)
        return topic, self._sink.warehouse.create(ref), [], epochs


def _knows(log: PartitionLog, part: RowsPart) -> bool:
    assert part.producer is not None, "replays are requests of idempotent producers"
    return log.remembers(part.producer.id, part.producer.seq)
