"""One batch of due checkpoints: read their messages, decide, append, and record that it is done (SPEC POP-11).

    1 look up what the destinations hold of each checkpoint        3 append: retry topics, dead letters, losses
    2 read the messages, lane by lane; decide                      4 append the `Done` records

A kill after any step leaves what was appended; the next run finds it at the destinations, by the producer that is
named after the checkpoint, and goes on. What cannot be read or written waits for its next try, and holds up nothing
else. So does what a reset of offsets between 2 and 3 overtakes: its fence in the destination refuses the append, and
the next run knows the reset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from deltamq.jobs.queue.batch_bounds import BOUNDS, BatchBounds
from deltamq.jobs.queue.outbox import OutgoingRequests
from deltamq.jobs.queue.revive_case import BatchOutcome, Case, CaseLane, Token, lost_record, parts_of, rows_of
from deltamq.mq.errors import Conflict, DeltaMQError
from deltamq.mq.limits import CLOCKS_APART_MS, REVIVE_QUEUES
from deltamq.mq.meta.fold import Meta
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey, Pop
from deltamq.mq.queue.revive import (
    REVIVE_PRODUCER_PREFIX,
    DeadLetter,
    DueCheckpoint,
    Later,
    Life,
    Lost,
    Revive,
    StoredCopies,
    decide_redelivery,
    life_of,
    loss_producer_id,
    settle,
    stored_bits,
)
from deltamq.mq.queue.revive_log import Done
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.fences import ANY_EPOCH, BROKER_FENCE, RESET_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.point_reads import Picked, TooMuch
from deltamq.tables.log.stored_requests import REMEMBERED_MS, StoredRequests
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.records import rows_of_lost_records, rows_of_records
from deltamq.tables.queue.refs import LOST, revive_ref, system_ref
from deltamq.tables.queue.topic_codecs import TopicCodecs
from deltamq.tables.queue.waiting_rows import pick_to_wait
from deltamq.tables.settings import Flush

#: Retry interval for a destination that cannot be written, in milliseconds; it doubles up to the maximum.
_WRITE_RETRY_MS: Final = 1_000
_WRITE_RETRY_MS_MAX: Final = 60_000
#: Checkpoints that are read at once; fewer if their messages are large.
_READ_CHECKPOINTS: Final = 512


class ReviveBatch:
    """Carries out batches against one state of the metadata."""

    def __init__(
        self,
        warehouse: Warehouse,
        cluster: str,
        meta: Meta,
        now_ms: int,
        failures: Callable[[DueCheckpoint], int],
        *,
        bounds: BatchBounds = BOUNDS,
    ) -> None:
        """`failures` returns the number of failed deliveries of a checkpoint so far."""
        self._warehouse = warehouse
        self._outbox_bytes = bounds.outbox_bytes
        self._cluster = cluster
        self._meta = meta
        self._codecs = TopicCodecs(lambda: meta)
        self._now_ms = now_ms
        self._failures = failures
        self._outcome = BatchOutcome()
        # Decisions follow this metadata: a destination that was fenced by a later reset refuses them (SPEC POP-18).
        fence_epochs = {BROKER_FENCE: ANY_EPOCH, RESET_FENCE: meta.groups.epoch}
        self._outbox: OutgoingRequests[Token] = OutgoingRequests(
            self._destination,
            after_append="revive.after_append",
            fence_epochs=lambda _: fence_epochs,
            confirm=self._confirm,
        )
        self._refreshed: dict[PartitionRef, PartitionLog | None] = {}
        #: For each destination: the time of its newest append when it was read.
        self._read_ms: dict[PartitionRef, int] = {}
        self._in_rows = StoredRequests(REVIVE_PRODUCER_PREFIX)

    def run(self, batch: Sequence[DueCheckpoint]) -> BatchOutcome:
        """Process `batch`: messages of one broker, within `BatchBounds`."""
        self._outcome = BatchOutcome()
        self._refreshed = {}
        cases: list[Case] = []
        for (lane, topic), dues in _by_lane(batch).items():
            cases += self._lane(lane, topic, dues)
        self._send()
        self._lose(cases)
        self._end(cases)
        self._keep_up()
        return self._outcome

    def _keep_up(self) -> None:
        for log in self._refreshed.values():
            if log is not None and log.ref.space is not Space.TOPICS:
                try:
                    log.maintain()
                except (DeltaMQError, OSError) as error:
                    self._outcome.troubles.add(f"{type(error).__name__}: {error}")

    # Deciding.

    def _lane(self, lane: LaneKey, topic_name: str, dues: Sequence[DueCheckpoint]) -> list[Case]:
        topic = self._meta.topics.topics.get(topic_name)
        group = self._meta.groups.groups.get(lane.group)
        epoch = self._meta.groups.epoch_of(lane)
        lives: dict[Life, list[DueCheckpoint]] = {}
        for due in dues:
            life = life_of(
                due.checkpoint,
                topic_id=topic.id if topic else None,
                epoch=epoch,
                group_epoch=group.epoch if group else None,
            )
            lives.setdefault(life, []).append(due)
        cases = []
        for life, members in lives.items():
            if life is Life.PRESENT and topic is not None and group is not None:
                cases += self._present(CaseLane(self._cluster, lane, topic, group), members)
            else:
                for due in members:
                    case = Case(due, StoredCopies())
                    case.decisions = decide_redelivery(due, life=life, max_attempts=1, now_ms=self._now_ms)
                    cases.append(case)
        return cases

    def _present(self, lane: CaseLane, dues: Sequence[DueCheckpoint]) -> list[Case]:
        try:
            retry, dead = self._look(lane.retry), self._look(lane.dead)
        except (DeltaMQError, OSError) as error:
            # Without knowing what the destinations hold, nothing may be decided.
            return [self._all_later(due, error) for due in dues]
        cases = []
        for due in sorted(dues, key=lambda due: due.checkpoint.span.start_offset):
            cases.append(Case(due, StoredCopies(self._stored(retry, due), self._stored(dead, due))))
        done, step = 0, _READ_CHECKPOINTS
        while done < len(cases):
            part = cases[done : done + step]
            try:
                picked = self._pick(lane, part, self._outbox_bytes if len(part) > 1 else None)
            except TooMuch:
                step = max(1, step // 2)
                continue
            except (DeltaMQError, OSError) as error:
                picked = _nothing(part, error)
            self._decide(lane, part, picked)
            done += len(part)
        return cases

    def _stored(self, destination: PartitionLog | None, due: DueCheckpoint) -> int:
        """A bit map of the due messages that a destination holds."""
        if destination is None:
            return 0
        # A process with a clock ahead may have counted the lease that this one replaced as expired, and revived it.
        since_ms = due.checkpoint.pop.pop_time_ms - CLOCKS_APART_MS
        forgotten = since_ms < destination.requests_whole_since_ms

        def sequences(producer: str) -> Collection[int]:
            seen = destination.known_producer(producer)
            remembered = () if seen is None else tuple(seen.parts)
            if self._now_ms - since_ms < REMEMBERED_MS and not forgotten:
                return remembered
            # The destination has forgotten requests that are more than a day or too many requests old; its rows still
            # have them.
            return (*remembered, *self._in_rows.of(destination, producer, since_ms))

        return stored_bits(due.checkpoint.key, due.checkpoint.span, due.bits, sequences)

    def _all_later(self, due: DueCheckpoint, error: Exception) -> Case:
        self._outcome.troubles.add(f"{type(error).__name__}: {error}")
        case = Case(due, StoredCopies())
        case.decisions = [Later(due.checkpoint, due.bits, self._now_ms + self._write_wait_ms(due))]
        return case

    def _pick(self, lane: CaseLane, cases: Sequence[Case], bytes_max: int | None) -> Picked:
        source = self._look(lane.source)
        if source is None:
            raise DeltaMQError(f"{lane.source.folder} does not exist")
        wanted = np.unique(np.array([offset for case in cases for offset in case.wanted], dtype=np.int64))
        return pick_to_wait(source, wanted, self._codecs.of_partition, bytes_max=bytes_max)

    def _decide(self, lane: CaseLane, cases: Sequence[Case], picked: Picked) -> None:
        self._outcome.troubles.update(picked.unreadable.values())
        for case in cases:
            tries = self._failures(case.due) + 1
            case.decisions = decide_redelivery(
                case.due,
                life=Life.PRESENT,
                max_attempts=lane.group.settings.max_attempts,
                now_ms=self._now_ms,
                stored=case.stored,
                gone=picked.gone,
                unreadable=dict.fromkeys(picked.unreadable, tries),
            )
        for kind, ref in ((Revive, lane.retry), (DeadLetter, lane.dead)):
            tokens = [(case, decision) for case in cases for decision in case.decisions if isinstance(decision, kind)]
            if tokens:
                rows = rows_of(picked, lane.pop_place, tokens)
                self._outbox.add(ref, rows, *parts_of(tokens))
        if self._outbox.bytes >= self._outbox_bytes:
            self._send()

    # Storing.

    def _send(self) -> None:
        for failed in self._outbox.send():
            self._outcome.troubles.add(failed.why)
            for case, decision in failed.tokens:
                case.put_off(decision, self._now_ms + self._write_wait_ms(case.due))

    def _lose(self, cases: Iterable[Case]) -> None:
        by_broker: dict[str, list[tuple[Case, Lost]]] = {}
        for case in cases:
            for decision in case.decisions:
                if isinstance(decision, Lost):
                    by_broker.setdefault(broker_of(decision.checkpoint.pop.partition), []).append((case, decision))
        for broker, lost in by_broker.items():
            records = rows_of_lost_records([lost_record(loss, self._now_ms) for _, loss in lost])
            parts = [
                RowsPart(1, ProducerStamp(loss_producer_id(loss.checkpoint.key), loss.bits, None, 1))
                for _, loss in lost
            ]
            try:
                log = self._warehouse.create(system_ref(LOST, self._cluster, broker))
                log.append_rows(records, parts, flush=Flush.SYNC)
            except (DeltaMQError, OSError) as error:
                self._outcome.troubles.add(f"{type(error).__name__}: {error}")
                for case, decision in lost:
                    case.put_off(decision, self._now_ms + self._write_wait_ms(case.due))
                continue
            failpoint("revive.after_lost")

    def _end(self, cases: Iterable[Case]) -> None:
        by_queue: dict[PartitionRef, list[tuple[Case, Done]]] = {}
        for case in cases:
            end = settle(case.due, case.decisions)
            if end is None:
                self._note(case)
            else:
                by_queue.setdefault(self._queue(case.due.checkpoint.pop), []).append((case, end))
        for ref, ends in by_queue.items():
            try:
                log = self._warehouse.create(ref)
                log.append([Batch(rows_of_records([end for _, end in ends]))], flush=Flush.SYNC)
            except (DeltaMQError, OSError) as error:
                # All messages are stored: the next run finds them at the destinations.
                self._outcome.troubles.add(f"{type(error).__name__}: {error}")
                for case, _ in ends:
                    at_ms = self._now_ms + self._write_wait_ms(case.due)
                    case.decisions = [Later(case.due.checkpoint, case.due.bits, at_ms)]
                    self._note(case)
                continue
            for case, _ in ends:
                self._note(case)
            failpoint("revive.after_done")

    def _note(self, case: Case) -> None:
        times = [later.at_ms for later in case.decisions if isinstance(later, Later)]
        for decision in case.decisions:
            self._outcome.count(decision)
        if times:
            self._outcome.later.append((case.due, min(times)))
        else:
            self._outcome.settled.append(case.due)

    # Partitions.

    def _queue(self, pop: Pop) -> PartitionRef:
        # Any queue would do, since a record names its checkpoint. An ordered pop has no queue's number.
        return revive_ref(self._cluster, pop.revive_queue % REVIVE_QUEUES, broker_of(pop.partition))

    def _look(self, ref: PartitionRef) -> PartitionLog | None:
        """Return the partition, refreshed once in a batch; None if it does not exist yet."""
        if ref not in self._refreshed:
            log = self._warehouse.open_partition(ref) if self._warehouse.exists(ref) else None
            if log is not None:
                log.refresh()
            self._refreshed[ref] = log
            self._read_ms[ref] = log.append_ms if log is not None else 0
        return self._refreshed[ref]

    def _destination(self, ref: PartitionRef) -> PartitionLog:
        return self._look(ref) or self._made(ref)

    def _confirm(self, destination: PartitionLog, parts: Sequence[RowsPart]) -> None:
        """Raise unless the destination still holds what it held when this batch read it (SPEC POP-11).

        Another run of the same work, by a repeated task or the other engine, may have been faster, and may have decided
        otherwise about a message: as part of another request, which the destination would not recognize.
        """
        if destination.requests_whole_since_ms > self._read_ms[destination.ref]:
            raise Conflict(f"{destination.ref.name} has forgotten requests since it was read", code="overtaken")
        for stamp in (part.producer for part in parts):
            assert stamp is not None, "every copy is a request"
            seen = destination.known_producer(stamp.id)
            if seen is not None and any(stored & stamp.seq and stored != stamp.seq for stored in seen.parts):
                raise Conflict(f"another run stored messages in {destination.ref.name} meanwhile", code="overtaken")

    def _made(self, ref: PartitionRef) -> PartitionLog:
        log = self._warehouse.create(ref)
        self._refreshed[ref] = log
        return log

    def _write_wait_ms(self, due: DueCheckpoint) -> int:
        return min(_WRITE_RETRY_MS << min(self._failures(due), 10), _WRITE_RETRY_MS_MAX)


def _by_lane(batch: Iterable[DueCheckpoint]) -> dict[tuple[LaneKey, str], list[DueCheckpoint]]:
    lanes: dict[tuple[LaneKey, str], list[DueCheckpoint]] = {}
    for due in batch:
        pop = due.checkpoint.pop
        lanes.setdefault((pop.lane, pop.topic), []).append(due)
    return lanes


def _nothing(cases: Iterable[Case], error: Exception) -> Picked:
    reason = f"{type(error).__name__}: {error}"
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([pa.field("offset", pa.int64())]))
    return Picked(
        empty, np.zeros(0, dtype=np.int64), unreadable={offset: reason for case in cases for offset in case.wanted}
    )
