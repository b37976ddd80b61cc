"""Sends dead letters back with storage credentials alone, in tasks if there are many (SPEC RETRY-3, SPARK-10).

    ranges of the group's dead letters -> tasks: read, filter, group by target, append, mark -> counts

Each dead letter is a request of a producer that is named after the letter's offset, as in the service's replay
(`mq.queue.dead_letters`). So both may replay the same letter, at once or repeatedly, and a partition stores it once,
for as long as it remembers its producers. The mark that says that it was sent back follows (SPEC RETRY-8).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.jobs.sink.open_sink import OpenSink, SinkSettings, open_sink
from deltamq.jobs.tasks.known_outcome import until_known
from deltamq.jobs.tasks.tasks import run_in_tasks
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
from deltamq.tables.settings import Flush

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Target = Literal["origin", "retry"]
#: Offsets of dead letters in one task.
TASK_OFFSETS_MAX: Final = 50_000
_DELETED: Final = "dead_letter_deleted"
_COUNTS: Final = pa.schema([("partition", pa.string()), ("what", pa.string()), ("count", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A selection of dead letters; a field that is None excludes none."""

    #: The topics that they came from.
    topics: frozenset[str] | None = None
    message_ids: frozenset[str] | None = None
    #: The time at which they became dead letters, `[since, until)`.
    since: datetime | None = None
    until: datetime | None = None
    #: Offsets by partition of the dead letters.
    offsets: Mapping[str, frozenset[int]] | None = None
    #: The first offset by folder of a partition of dead letters (`Replayed.ends` of an earlier replay).
    start_offsets: Mapping[str, int] = field(default_factory=dict)

    @property
    def names_letters(self) -> bool:
        """Whether it names single dead letters, which are sent back in any case."""
        return self.offsets is not None or self.message_ids is not None

    def mask(self, partition: str, rows: pa.Table) -> pa.ChunkedArray:
        """Return which rows of a partition are selected."""
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
    """What became of the selected dead letters; a dry run tells only of what is `matched` and `duplicates`."""

    #: Those that are selected and not deleted.
    matched: int = 0
    replayed: int = 0
    #: Sent back by an earlier replay.
    duplicates: int = 0
    #: Counts by code: `topic_not_found`, or the code of the refused append.
    failed: Mapping[str, int] = field(default_factory=dict)
    #: The end offset by folder of a partition of dead letters, where a later replay begins.
    ends: Mapping[str, int] = field(default_factory=dict, compare=False)


class _What(NamedTuple):
    """The parameters of a replay."""

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
    what: _What


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

    Those that were sent back before go again only if `chosen` names them by offset or id; deleted ones never.

    Parameters
    ----------
    to
        `origin`: to the topic they came from, for all groups; `retry`: to this group alone.
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
    place = open_sink(settings)
    what = _What(group, to, replace(chosen, start_offsets={}), dry_run)
    letters = list(_letters(place, group, chosen))
    work = [one for some in letters for one in _divided(place.settings, some, what)]
    if spark is None:
        counts = pa.Table.from_batches([batch for one in work for batch in _replay(one)], schema=_COUNTS)
    else:
        counts = run_in_tasks(spark, work, _replay, _COUNTS)
    total: Counter[str] = Counter()
    for row in counts.to_pylist():
        total[row["what"]] += row["count"]
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
    #: The folder of their partition, for the current epoch of the group.
    folder: str
    low: int
    high: int


def _letters(place: OpenSink, group: str, chosen: Chosen) -> Iterator[_Letters]:
    """Yield the dead letters of every broker that ever existed, since their topics may be gone."""
    meta = place.refresh()
    its_group = meta.groups.group(group)
    routes = [topic.route.partitions for topic in meta.topics.topics.values()]
    brokers = {*place.settings.brokers, *meta.brokers.brokers}
    brokers |= {broker_of(name) for route in routes for name in route}
    names = {dead_ref(group, its_group.epoch, broker).name: broker for broker in sorted(brokers)}
    for partition in chosen.offsets or ():
        if partition not in names:
            detail = f"offsets: there are no dead letters in {partition!r}; the partitions are {', '.join(names)}"
            raise NotFound(detail, code="partition_not_found", field="offsets")
    for partition, broker in names.items():
        ref = dead_ref(group, its_group.epoch, broker)
        if (chosen.offsets is not None and partition not in chosen.offsets) or not place.warehouse.exists(ref):
            continue
        log = place.warehouse.open_partition(ref)
        log.refresh()
        low = max(log.min_offset, chosen.start_offsets.get(ref.folder, 0))
        yield _Letters(broker, ref.folder, low, log.end_offset)


def _divided(settings: SinkSettings, letters: _Letters, what: _What) -> Iterator[_Work]:
    for low in range(letters.low, letters.high, TASK_OFFSETS_MAX):
        yield _Work(settings, letters.broker, low, min(low + TASK_OFFSETS_MAX, letters.high), what)


def _replay(work: _Work) -> Iterator[pa.RecordBatch]:
    """Send back the selected dead letters of one task's offsets; yield counts."""
    place = open_sink(work.settings)
    its_group = place.refresh().groups.group(work.what.group)
    log = place.warehouse.open_partition(dead_ref(work.what.group, its_group.epoch, work.broker))
    log.refresh()
    marks = _Marks(place, dead_marks_ref(work.what.group, its_group.epoch, work.broker), work.what.to)
    letters = marks.letters()
    named = work.what.chosen.names_letters
    counts: Counter[str] = Counter()
    for page in pages(log, max(work.low, log.min_offset)):
        rows = page.rows.filter(pc.less(page.rows.column("offset"), work.high))
        rows = rows.filter(work.what.chosen.mask(log.ref.name, rows))
        states = np.array(LETTER_STATES)[states_at(letters, rows.column("offset").to_numpy())]
        counts["matched"] += int(np.sum(states != "deleted"))
        if named:
            counts[_DELETED] += int(np.sum(states == "deleted"))
        else:
            counts["duplicate"] += int(np.sum(states == "sent_back"))
        rows = rows.filter(pa.array((states == "new") | ((states == "sent_back") & named), pa.bool_()))
        if rows.num_rows and not work.what.dry_run:
            sender = _Sender(place, its_group, log.ref.name, work.what.to)
            counts += sender.send(one_record_batch(rows))
            failpoint("replay.before_mark")
            marks.add([at for at, again in sender.stored if not again or letters.sent(at) is None])
        if page.next_offset >= work.high:
            break
    found = [{"partition": log.ref.name, "what": what, "count": count} for what, count in counts.items()]
    if found:
        yield pa.RecordBatch.from_pylist(found, schema=_COUNTS)


class _Marks:
    """The marks of the dead letters of one broker, read once, and added to."""

    def __init__(self, place: OpenSink, ref: PartitionRef, to: Target) -> None:
        self._place = place
        self._ref = ref
        self._to = to

    def letters(self) -> LetterMarks:
        """Return what became of the dead letters so far."""
        if not self._place.warehouse.exists(self._ref):
            return LetterMarks()
        log = self._place.warehouse.open_partition(self._ref)
        log.refresh()
        return DeadMarks().follow(log)

    def add(self, offsets: Sequence[int]) -> None:
        """Mark dead letters as sent back; a mark that is stored twice counts once."""
        now_ms = self._place.warehouse.clock.wall_us() // 1_000
        sent = np.array(sorted(offsets), dtype=np.int64)
        found = mark_ranges(sent, lambda ranges: SentBack(ranges, self._to, now_ms))
        if found:
            rows = rows_of_dead_marks(found)
            until_known(lambda: self._place.warehouse.create(self._ref).append([Batch(rows)], flush=Flush.SYNC))


class _Place(NamedTuple):
    """A target of dead letters: a partition of a topic, or without a name the group's retry partition of the topic.

    The partitions of a static topic are its logical queues, whose messages may go elsewhere at the next try.
    """

    topic: str
    partition: str | None


class _Sender:
    """Sends back the dead letters of one partition."""

    def __init__(self, place: OpenSink, group: Group, dead: str, to: Target) -> None:
        self._place = place
        self._group = group
        self._dead = dead
        self._to = to
        self._topics: dict[str, Topic | None] = {}
        #: The offsets of what is stored at its target now, and whether an earlier replay had stored it.
        self.stored: list[tuple[int, bool]] = []

    def send(self, rows: pa.RecordBatch) -> Counter[str]:
        """Append rows to their targets; return counts of the outcomes."""
        counts: Counter[str] = Counter()
        by_place: dict[_Place, list[int]] = {}
        columns = [rows.column(name).to_pylist() for name in ("offset", "origin", "key")]
        for at, (offset, origin, key) in enumerate(zip(*columns, strict=True)):
            where = self._where(offset, origin, key)
            if where is None:
                counts["topic_not_found"] += 1
            else:
                by_place.setdefault(where, []).append(at)
        for where, places in by_place.items():
            counts += self._append(where, rows.take(pa.array(places)))
        return counts

    def _where(self, offset: int, origin: Mapping[str, str], key: str | None) -> _Place | None:
        topic = origin["topic"]
        if topic not in self._topics:
            self._topics[topic] = self._place.meta.state.topics.get(topic)
        if self._topics[topic] is None:
            return None
        if self._to == "retry":
            return _Place(topic, None)
        _, placement = self._place.routed(topic)
        home = placement.home_of(topic, origin["partition"], key, offset)
        found = None if placement.queues is None else placement.queues.of_partition(home)
        return _Place(topic, home if found is None else found.queue.name)

    def _append(self, where: _Place, rows: pa.RecordBatch) -> Counter[str]:
        back = sent_back(rows, to_retry=self._to == "retry")
        parts = [RowsPart(1, self._stamp(offset)) for offset in rows.column("offset").to_pylist()]
        try:
            appended = self._stored(where, back, parts)
        except (Unknown, Unavailable):
            raise
        except DeltaMQError as error:
            return Counter({error.code: rows.num_rows})
        self.stored += zip(rows.column("offset").to_pylist(), appended, strict=True)
        return Counter("duplicate" if one else "replayed" for one in appended)

    def _stamp(self, offset: int) -> ProducerStamp:
        name = Replay(self._group.name, self._group.epoch, self._dead, offset)
        return ProducerStamp(name.producer_id, name.producer_seq, None, 1)

    def _stored(self, where: _Place, rows: pa.RecordBatch, parts: Sequence[RowsPart]) -> list[bool]:
        """Append; return for each row whether it was stored before. A fence is passed once the metadata contains it."""
        until_s = time.monotonic() + self._place.fenced_s
        return until_known(lambda: self._stored_once(where, rows, parts, until_s))

    def _stored_once(
        self, where: _Place, rows: pa.RecordBatch, parts: Sequence[RowsPart], until_s: float
    ) -> list[bool]:
        while True:
            topic, log, earlier, fence_epochs = self._target(where)
            left = [at for at, part in enumerate(parts) if not any(_knows(one, part) for one in earlier)]
            failpoint("replay.before_append")
            if not left:
                return [True] * len(parts)
            try:
                done = log.append_rows(
                    rows.take(pa.array(left, pa.int64())),
                    [parts[at] for at in left],
                    flush=Flush.SYNC,
                    fence_epochs=fence_epochs,
                )
            except Fenced as error:
                self._place.learn(topic, error, until_s)
            else:
                failpoint("replay.after_append")
                stored = dict(zip(left, (one.duplicate for one in done), strict=True))
                return [stored.get(at, True) for at in range(len(parts))]

    def _target(self, where: _Place) -> tuple[Topic, PartitionLog, list[PartitionLog], FenceEpochs]:
        """Return the log to append to now, and the logs in which an earlier try may have stored the rows."""
        while True:
            topic, placement = self._place.routed(where.topic)
            if not placement.ahead:
                break
            self._place.seal(topic)
        if where.partition is not None:
            name = placement.partitions[placement.number_of(topic.name, where.partition, "partition")]
            earlier = [self._place.log(topic, one) for one in placement.segments_before(name)]
            for one in earlier:
                one.refresh()
            return topic, self._place.log(topic, name), earlier, placement.fence_epochs[name]
        broker = retry_broker(self._dead, topic.route.partitions)
        ref = retry_ref(self._group.name, self._group.epoch, topic.name, topic.generation, broker)
        epochs = fence_epochs_of(self._place.meta.meta.brokers, broker)
        return topic, self._place.warehouse.create(ref), [], epochs


def _knows(log: PartitionLog, part: RowsPart) -> bool:
    """Return whether a partition remembers a request."""
    assert part.producer is not None, "replays are requests of idempotent producers"
    return log.remembers(part.producer.id, part.producer.seq)
