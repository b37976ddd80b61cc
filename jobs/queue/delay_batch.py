"""One batch of due delayed messages: read them, append them to their targets, mark that they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.jobs.queue.batch_bounds import BOUNDS, BatchBounds
from deltamq.jobs.queue.outbox import OutgoingRequests
from deltamq.mq.errors import Conflict, DeltaMQError
from deltamq.mq.limits import CLOCKS_APART_MS
from deltamq.mq.queue.delay import DELAY_PRODUCER_PREFIX, Delayed, Drop, DropReason, Forward, decide_forwards
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.point_reads import Picked, TooMuch, pick
from deltamq.tables.log.stored_requests import REMEMBERED_MS, StoredRequests
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.delay_marks import DelayMarks
from deltamq.tables.queue.delay_targets import DelayTargets
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.redelivery_rows import forwarded
from deltamq.tables.queue.waiting_rows import WAITING_COLUMNS

Int64s = npt.NDArray[np.int64]

#: Messages that are read at once; fewer if they are large.
_READ_MESSAGES: Final = 8_192


class DueQueue(Protocol):
    """A delay log whose due messages are forwarded, and where their outcome is recorded."""

    @property
    def log(self) -> PartitionLog | None: ...

    @property
    def marks(self) -> DelayMarks: ...

    def put_off(self, times: Iterable[int], offsets: Sequence[int], now_ms: int) -> None:
        """Keep messages that could not be forwarded for a later try."""

    def end(self, offsets: Int64s) -> None:
        """Record that messages have ended."""


class DelayOutcome(msgspec.Struct):
    """Counts of the messages of a run, by outcome."""

    forwarded: int = 0
    cancelled: int = 0
    #: Messages whose topic was deleted.
    dropped: int = 0
    #: Messages that retention removed before they were forwarded.
    lost: int = 0
    late_ms: int = 0
    troubles: set[str] = msgspec.field(default_factory=set)

    def counts(self) -> dict[str, int]:
        """Return the counts as facts of a run."""
        return {"rows": self.forwarded, "cancelled": self.cancelled, "dropped": self.dropped, "lost": self.lost}


class DelayBatch:
    """Forwards some due messages, then marks them."""

    def __init__(
        self,
        warehouse: Warehouse,
        queue: DueQueue,
        meta: MetaLog,
        now_ms: int,
        outcome: DelayOutcome,
        *,
        bounds: BatchBounds = BOUNDS,
    ) -> None:
        self._warehouse = warehouse
        self._outbox_bytes = bounds.outbox_bytes
        self._queue = queue
        self._targets = DelayTargets(warehouse, meta, lambda: warehouse.clock.wall_us() // 1_000)
        self._now_ms = now_ms
        self._outcome = outcome
        self._outbox: OutgoingRequests[int] = OutgoingRequests(
            self._open,
            after_append="delay.after_append",
            fence_epochs=self._targets.fence_epochs,
            confirm=self._confirm,
        )
        self._opened: dict[PartitionRef, PartitionLog] = {}
        #: For each target: the time of its newest append when this batch first read its stored requests.
        self._read_ms: dict[PartitionRef, int] = {}
        self._sent = 0
        self._failed: set[int] = set()
        self._in_rows = StoredRequests(DELAY_PRODUCER_PREFIX)

    def run(self, times: Int64s, offsets: Int64s) -> None:
        log = self._queue.log
        assert log is not None, "messages wait in it"
        at, step = 0, _READ_MESSAGES
        while at < len(offsets):
            part = offsets[at : at + step]
            try:
                bytes_max = self._outbox_bytes if len(part) > 1 else None
                picked = pick(log, np.sort(part), bytes_max=bytes_max, columns=WAITING_COLUMNS)
            except TooMuch:
                step = max(1, step // 2)
                continue
            self._decide(picked)
            at += len(part)
        self._send()
        failed = np.isin(offsets, np.array(sorted(self._failed), dtype=np.int64))
        self._queue.put_off(times[failed].tolist(), offsets[failed].tolist(), self._now_ms)
        self._outcome.forwarded += self._sent
        self._queue.end(offsets[~failed])
        self._keep_up()

    def _decide(self, picked: Picked) -> None:
        self._outcome.lost += len(picked.gone)
        self._outcome.troubles.update(picked.unreadable.values())
        self._failed.update(picked.unreadable)
        waiting = self._delayed(picked)
        partition = self._queue.marks.delay_partition
        cancelled = {(partition, offset) for offset in self._queue.marks.cancelled}
        keys = dict(zip(*(picked.rows.column(name).to_pylist() for name in ("offset", "key")), strict=True))
        targets: dict[PartitionRef, list[Forward]] = {}
        ids = self._targets.topic_ids
        for decision in decide_forwards(waiting, now_ms=self._now_ms, cancelled=cancelled, topic_ids=ids):
            if isinstance(decision, Drop):
                self._skip(decision)
            elif (ref := self._target(decision.message, keys[decision.message.offset])) is not None:
                targets.setdefault(ref, []).append(decision)
        for ref, forwards in targets.items():
            fresh = self._not_stored(ref, forwards)
            if fresh:
                self._put(ref, picked, fresh)
        if self._outbox.bytes >= self._outbox_bytes:
            self._send()

    def _delayed(self, picked: Picked) -> list[Delayed]:
        """A row without a target is kept for repair by hand."""
        rows = picked.rows
        origin = rows.column("origin")
        times = pc.fill_null(rows.column("deliver_time").cast(pa.int64()), 0)
        columns = [
            rows.column("offset"),
            rows.column("message_id"),
            times,
            pc.struct_field(origin, "topic"),
            pc.struct_field(origin, "partition"),
        ]
        messages = []
        for offset, message_id, micros, target, partition in zip(
            *[column.to_pylist() for column in columns], strict=True
        ):
            topic_id, slash, topic = (target or "").partition("/")
            if not slash or partition is None:
                self._outcome.troubles.add(f"{self._queue.marks.delay_partition}: offset {offset} names no target")
                self._failed.add(offset)
                continue
            messages.append(
                Delayed(
                    delay_partition=self._queue.marks.delay_partition,
                    offset=offset,
                    message_id=message_id,
                    deliver_time_ms=-(-micros // 1_000),
                    topic=topic,
                    topic_id=topic_id,
                    partition=partition,
                )
            )
        return messages

    def _skip(self, drop: Drop) -> None:
        if drop.reason is DropReason.CANCELLED:
            self._outcome.cancelled += 1
        else:
            self._outcome.dropped += 1

    def _target(self, message: Delayed, key: str | None) -> PartitionRef | None:
        """None: the target cannot be determined now."""
        try:
            return self._targets.of(message, key)
        except (DeltaMQError, OSError) as error:
            self._fail(error, [message.offset])
            return None

    def _not_stored(self, ref: PartitionRef, forwards: Sequence[Forward]) -> Sequence[Forward]:
        """Drop the messages that are stored where the append itself would not recognize them.

        A target forgets requests after a day, or after more requests than a partition remembers. It does not know
        the requests in earlier segments of its logical queue.
        """
        try:
            origins = {forward.message.partition for forward in forwards}
            for earlier in self._targets.before(ref, origins, _since_ms(forwards)):
                if forwards and self._warehouse.exists(earlier):
                    log = self._warehouse.open_partition(earlier)
                    log.refresh()
                    forwards = self._without_stored(log, forwards)
            log = self._open(ref)
            log.refresh()
            self._read_ms.setdefault(ref, log.append_ms)
            return forwards if self._remembers(log, forwards) else self._without_stored(log, forwards)
        except (DeltaMQError, OSError) as error:
            self._fail(error, [forward.message.offset for forward in forwards])
            return []

    def _without_stored(self, log: PartitionLog, forwards: Sequence[Forward]) -> Sequence[Forward]:
        if self._remembers(log, forwards):
            return [forward for forward in forwards if not log.remembers(forward.producer_id, forward.producer_seq)]
        since_ms = _since_ms(forwards)
        return [
            forward
            for forward in forwards
            if forward.producer_seq not in self._in_rows.of(log, forward.producer_id, since_ms)
        ]

    def _remembers(self, log: PartitionLog, forwards: Sequence[Forward]) -> bool:
        """Whether a partition still knows all requests since the messages were due."""
        since_ms = _since_ms(forwards)
        return self._now_ms - since_ms < REMEMBERED_MS and since_ms >= log.requests_whole_since_ms

    def _fail(self, error: Exception, offsets: Iterable[int]) -> None:
        self._outcome.troubles.add(f"{type(error).__name__}: {error}")
        self._failed.update(offsets)

    def _confirm(self, target: PartitionLog, _: Sequence[RowsPart]) -> None:
        """Raise if the target may have forgotten, since it was read, requests that another run has stored."""
        if target.requests_whole_since_ms > self._read_ms[target.ref]:
            raise Conflict(f"{target.ref.name} has forgotten requests since it was read", code="overtaken")

    def _put(self, ref: PartitionRef, picked: Picked, forwards: Sequence[Forward]) -> None:
        offsets = [forward.message.offset for forward in forwards]
        places = picked.places(np.array(offsets, dtype=np.int64))
        try:
            rows = self._targets.arrived(ref, forwarded(picked.rows.take(pa.array(places))))
        except DeltaMQError as error:
            self._fail(error, offsets)
            return
        parts = [RowsPart(1, ProducerStamp(forward.producer_id, forward.producer_seq, None, 1)) for forward in forwards]
        self._outbox.add(ref, rows, parts, offsets)
        self._sent += len(offsets)

    def _send(self) -> None:
        for failed in self._outbox.send():
            self._outcome.troubles.add(failed.why)
            self._failed.update(failed.tokens)
            self._sent -= len(failed.tokens)

    def _open(self, ref: PartitionRef) -> PartitionLog:
        log = self._opened[ref] = self._warehouse.create(ref)
        return log

    def _keep_up(self) -> None:
        for log in self._opened.values():
            try:
                log.maintain()
            except (DeltaMQError, OSError) as error:
                self._outcome.troubles.add(f"{type(error).__name__}: {error}")


def _since_ms(forwards: Sequence[Forward]) -> int:
    """A time before which no run can have forwarded any of the messages."""
    return min((forward.message.deliver_time_ms for forward in forwards), default=0) - CLOCKS_APART_MS
