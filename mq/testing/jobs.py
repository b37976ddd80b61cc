"""The scheduled jobs of the in-memory queue: revive and delay, step by step, so that tests can kill them anywhere.

Each step stores one thing. A run that is killed between two steps leaves what it has stored, and the next run finishes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, Span
from deltamq.mq.queue.delay import Delayed, Forward, decide_forwards
from deltamq.mq.queue.lane import Lane
from deltamq.mq.queue.retry import retry_lane, with_reason
from deltamq.mq.queue.revive import (
    DeadLetter,
    DueCheckpoint,
    Life,
    Lost,
    Revive,
    StoredCopies,
    decide_redelivery,
    due,
    life_of,
    settle,
    stored_bits,
)
from deltamq.mq.testing.log import MemoryLog, Origin, Row, StoredState

DELAY_PARTITION = "delay@memory"


def revive_steps(
    tables: StoredState, now_ms: int, *, settle_ms: int, unreadable: Collection[tuple[str, int]] = ()
) -> Iterator[None]:
    """Deliver again messages that were not acknowledged in time (SPEC POP-11); yields after each step.

    `unreadable` are partition and offset of messages that cannot be read in this run.
    """
    for due_checkpoint in due(tables.states.values(), now_ms, settle_ms=settle_ms):
        yield from _revive(tables, due_checkpoint, now_ms, unreadable)


def _revive(
    tables: StoredState, due_checkpoint: DueCheckpoint, now_ms: int, unreadable: Collection[tuple[str, int]]
) -> Iterator[None]:
    checkpoint = due_checkpoint.checkpoint
    pop = checkpoint.pop
    life = _life(tables, checkpoint)
    if life is Life.PRESENT:
        source = tables.lane_log(pop.lane)
        retry = tables.lane_log(retry_lane(pop.lane, pop.topic))
        dead = tables.dead_letters(pop.group)
        span = checkpoint.span
        offsets = [span.offset_of(index) for index in range(span.num)]
        decisions = decide_redelivery(
            due_checkpoint,
            life=life,
            max_attempts=tables.groups.group(pop.group).settings.max_attempts,
            now_ms=now_ms,
            stored=StoredCopies(
                *(
                    stored_bits(checkpoint.key, checkpoint.span, due_checkpoint.bits, log.stored_seqs)
                    for log in (retry, dead)
                )
            ),
            gone=[offset for offset in offsets if offset < source.min_offset],
            unreadable={offset: 1 for offset in offsets if (pop.partition, offset) in unreadable},
        )
        for decision in decisions:
            if isinstance(decision, Lost):
                tables.lose(pop.lane, decision.offsets(), decision.reason)
            elif isinstance(decision, Revive | DeadLetter):
                target = dead if isinstance(decision, DeadLetter) else retry
                _append(target, source, decision, now_ms)
            else:
                continue
            yield
    else:
        decisions = decide_redelivery(due_checkpoint, life=life, max_attempts=1, now_ms=now_ms)
    end = settle(due_checkpoint, decisions)
    if end is not None:
        tables.record([end])
        yield


def _life(tables: StoredState, checkpoint: Checkpoint) -> Life:
    pop = checkpoint.pop
    topic = tables.topics.get(pop.topic)
    group = tables.groups.groups.get(pop.group)
    return life_of(
        checkpoint,
        topic_id=topic.id if topic else None,
        epoch=tables.groups.epoch_of(pop.lane),
        group_epoch=group.epoch if group else None,
    )


def redelivered(tables: StoredState, key: CheckpointKey, topic: str, span: Span, bits: int) -> int:
    """Return the messages of a lease that revive has delivered again, perhaps early by a clock ahead (SPEC POP-9)."""
    places = tables.lane_log(retry_lane(key.lane, topic)), tables.dead_letters(key.group)
    return stored_bits(key, span, bits, lambda producer: [seq for log in places for seq in log.stored_seqs(producer)])


def settle_overdue(tables: StoredState, buffer: Buffer, lane: Lane) -> None:
    """Update a lane's overdue messages: note which ones were delivered again, and which ones retention removed."""
    low = tables.lane_log(lane.key).min_offset
    for held in list(lane.overdue.values()):
        key, span = held.checkpoint().key, held.span
        buffer.redelivered(held, span.below(low) | redelivered(tables, key, held.pop.topic, span, held.full))


def _append(target: MemoryLog, source: MemoryLog, decision: Revive | DeadLetter, now_ms: int) -> None:
    pop = decision.checkpoint.pop
    rows = []
    for copy in decision.copies():
        (row,) = source.read(copy.offset, copy.offset + 1)
        row = again(row, pop.topic, pop.partition, copy.reconsume_times)
        if isinstance(decision, DeadLetter):
            row = replace(row, headers=with_reason(row.headers, decision.reason))
        rows.append(row)
    for producer, seq in decision.requests():
        count = seq.bit_count()
        target.append(rows[:count], now_ms, producer_id=producer, seq=seq)
        rows = rows[count:]


def again(row: Row, topic: str, partition: str, reconsume_times: int) -> Row:
    """Return the copy of a message for redelivery, with its producer's data and its first place (SPEC RETRY-1)."""
    origin = row.origin or Origin(topic, partition, row.offset)
    return replace(row, origin=origin, reconsume_times=reconsume_times, deliver_time_ms=None)


def delay_steps(tables: StoredState, now_ms: int) -> Iterator[None]:
    """Forward due messages (SPEC RETRY-4); yields after each step."""
    log = tables.log("delay")
    waiting = [delayed_of(row) for row in log.read(0, log.end_offset)]
    ids = {topic.id for topic in tables.topics.values()}
    for decision in decide_forwards(
        waiting, now_ms=now_ms, ended=tables.delay_ended, cancelled=tables.cancelled, topic_ids=ids
    ):
        message = decision.message
        if isinstance(decision, Forward):
            (row,) = log.read(message.offset, message.offset + 1)
            target = tables.log("topic", message.topic_id, message.partition)
            target.append(
                [replace(row, origin=None)], now_ms, producer_id=decision.producer_id, seq=decision.producer_seq
            )
            yield
        tables.delay_ended.add((message.delay_partition, message.offset))
        yield


def delayed_of(row: Row) -> Delayed:
    """Return the delayed message in a row of the delay partition."""
    assert row.origin is not None and row.deliver_time_ms is not None, "written by `MemoryQueue.send`"
    topic_id, _, topic = row.origin.topic.partition("/")
    return Delayed(
        delay_partition=DELAY_PARTITION,
        offset=row.offset,
        message_id=row.message_id,
        deliver_time_ms=row.deliver_time_ms,
        topic=topic,
        topic_id=topic_id,
        partition=row.origin.partition,
    )
