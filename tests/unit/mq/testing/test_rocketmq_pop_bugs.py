"""RocketMQ's POP bugs, each as a test of ours; `#n` and `test_n_` name the issue in RocketMQ's tracker."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from deltamq.mq.errors import Conflict
from deltamq.mq.meta.group_settings import InvisibleBounds
from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import Checkpoint, LaneKey, Pop, Span, spans_of
from deltamq.mq.queue.progress import Committed, Start
from deltamq.mq.queue.revive import due
from deltamq.mq.queue.revive_log import Ack, Done, Record, fold
from deltamq.mq.testing.broker import Popped
from deltamq.mq.testing.queue import MemoryQueue

SETTLED = 61_000
PARTITION = "orders@memory"


def queue_of(count: int, **settings: object) -> MemoryQueue:
    queue = MemoryQueue(now_ms=1_000, invisible=InvisibleBounds(min_ms=100))
    queue.create_topic("orders")
    queue.put_group("billing", **settings)
    for number in range(count):
        queue.send("orders", b"%d" % number)
    return queue


def bodies(popped: list[Popped]) -> list[bytes]:
    return [message.row.body for message in popped]


def later(queue: MemoryQueue) -> list[Popped]:
    """What comes again when nothing more is acknowledged."""
    queue.advance(SETTLED)
    queue.run_jobs()
    return queue.pop("billing", "orders", 1_000)


def checkpoint_of(start: int, num: int, *, popped_ms: int = 0, partition: str = PARTITION) -> Checkpoint:
    pop = Pop(
        topic="orders",
        topic_id="orders-1",
        group="billing",
        epoch=1,
        partition=partition,
        pop_time_ms=popped_ms,
        invisible_ms=60_000,
        revive_queue=0,
    )
    return Checkpoint(pop=pop, span=Span(start, num))


def test_revive_skipped_unacked_messages() -> None:
    """Every message without an ack comes again, wherever it stands among acked ones, in every checkpoint of a pop."""
    queue = queue_of(70)
    popped = queue.pop("billing", "orders", 70)
    acked = [message for number, message in enumerate(popped) if number % 3]
    queue.ack("billing", [message.handle for message in acked])
    assert bodies(later(queue)) == [b"%d" % number for number in range(0, 70, 3)]


def test_revive_offset_passed_a_checkpoint_whose_read_failed() -> None:
    """Nothing moves past a message that could not be read, and it holds up nobody (#9106, #10658, #10985)."""
    queue = queue_of(3)
    queue.pop("billing", "orders")
    queue.advance(SETTLED)
    for _ in range(3):
        queue.run_revive(unreadable={(PARTITION, 1)})
    assert bodies(queue.pop("billing", "orders")) == [b"0", b"2"]
    queue.run_revive()
    assert bodies(queue.pop("billing", "orders")) == [b"1"]


def test_ack_raced_the_durable_checkpoint() -> None:
    """An ack that comes while its checkpoint is being stored is stored itself, whichever the log has first."""
    buffer = Buffer()
    lane = buffer.open_lane(LaneKey("orders-1", "billing", False, PARTITION), Committed(1, 0), tenure=1, now_ms=0)
    pop = checkpoint_of(0, 1).pop
    buffer.hold(lane, pop, spans_of(range(3)), 3, 0)
    (leaving,) = buffer.tick(10_000)
    racing = buffer.ack(lane, 0, 0, 0b101, 10_000, tenure=1)
    assert racing.held is not None
    ack = Ack(leaving.checkpoint.key, racing.store, pop.revive_time_ms)
    for log in ([ack, leaving.checkpoint], [leaving.checkpoint, ack]):
        assert fold({}, log)[leaving.checkpoint.key].open == 0b010
    buffer.ack_stored(racing.held, racing.store, 10_001)
    buffer.stored(leaving)
    assert lane.in_flight == 1


def test_different_message_revived_after_topic_was_deleted_and_recreated() -> None:
    """#7724, #8479: offset 0 of the new topic is not what was popped from the old one."""
    queue = queue_of(1)
    (old,) = queue.pop("billing", "orders", invisible_ms=1_000)
    queue.delete_topic("orders")
    queue.create_topic("orders")
    queue.send("orders", b"another message at the same offset")
    assert queue.ack("billing", [old.handle]).failed == {0: "handle_expired"}
    assert bodies(later(queue)) == [b"another message at the same offset"]
    assert later(queue)[0].delivery_attempt == 2, "popped once, revived once"


def test_ack_offset_difference_wrapped() -> None:
    """Offsets of a filtered pop may lie more than 2^31 apart."""
    span = Span(5, 3, (0, 2**31, 2**40 + 9))
    checkpoint = replace(checkpoint_of(0, 1), span=span)
    acked = checkpoint.ack(14 + 2**40)
    assert acked.bit_map == 0b100
    assert acked.ack(14) is acked
    assert acked.span.full & ~acked.ack(5 + 2**31).bit_map == 0b001


def test_offset_stuck_when_acks_outnumber_checkpoints() -> None:
    """#3443, #5408: acks without a checkpoint, more than once, hold up nothing."""
    known, unknown = checkpoint_of(0, 2), checkpoint_of(50, 2)
    acks: list[Record] = [Ack(unknown.key, bit, 60_000) for bit in (1, 2, 3, 1, 2, 3)]
    states = fold({}, [*acks, known, *acks])
    (one,) = due(states.values(), 10**9)
    assert (one.checkpoint, one.bits) == (known, 0b11)


def test_buffered_ack_lost_near_expiry() -> None:
    """#3787, #4153: an ack counts up to the last millisecond, wherever the checkpoint is by then."""
    for wait_ms in (1, 9_999, 10_000, 56_999, 57_000, 59_999):
        queue = queue_of(2)
        first, second = queue.pop("billing", "orders")
        queue.ack("billing", [first.handle])
        queue.advance(wait_ms)
        assert queue.ack("billing", [second.handle]).acked == 1
        queue.crash()
        if wait_ms >= 10_000:
            assert later(queue) == [], f"acked after {wait_ms} ms"


def test_buffered_acks_survive_an_orderly_stop_just_before_expiry() -> None:
    queue = queue_of(2)
    first, second = queue.pop("billing", "orders", invisible_ms=5_000)
    queue.ack("billing", [first.handle])
    queue.advance(1_900)
    queue.restart()
    queue.ack("billing", [second.handle])
    assert later(queue) == []


def test_orderly_pop_with_offset_reset() -> None:
    """#10229: a handle from before a reset opens no block and moves no offset."""
    queue = queue_of(4, order=True)
    old = queue.pop("billing", "orders", 2)
    queue.reset_offsets("billing", "orders", Start())
    new = queue.pop("billing", "orders", 2)
    assert bodies(new) == [b"0", b"1"], "the block is gone"
    assert queue.ack("billing", [message.handle for message in old]).acked == 0
    assert queue.pop("billing", "orders", 2) == [], "and the new block holds"
    assert queue.lag("billing", "orders") == 4
    assert queue.ack("billing", [message.handle for message in new]).acked == 2
    assert bodies(queue.pop("billing", "orders", 2)) == [b"2", b"3"]


# Further issues that lie in the pure core.


def test_7914_a_clock_that_went_back_loses_no_message() -> None:
    """The "last epoch" test compared the pop time with the store time, and dropped messages."""
    queue = queue_of(0)
    queue.now_ms = 1_000_000
    queue.send("orders", b"stored in the future")
    queue.now_ms = 500_000
    queue.pop("billing", "orders")
    assert bodies(later(queue)) == [b"stored in the future"]


def test_7412_a_checkpoint_names_its_broker() -> None:
    """Two brokers' queues of one number are two partitions."""
    one, other = checkpoint_of(0, 1, partition="0@broker-a"), checkpoint_of(0, 1, partition="0@broker-b")
    states = fold({}, [one, other, Ack(one.key, 1, 60_000)])
    assert (states[one.key].open, states[other.key].open) == (0, 1)


def test_checkpoints_of_two_partitions_with_one_start_offset_do_not_share_a_slot() -> None:
    checkpoints = [checkpoint_of(7, 1, partition=f"{name}@memory") for name in "ab"]
    assert [one.checkpoint for one in due(fold({}, checkpoints).values(), 10**9)] == checkpoints


def test_10276_a_change_to_the_same_visibility_time_keeps_the_message() -> None:
    """In one millisecond, to the same end, again and again: one live handle, and without it the message comes."""
    queue = queue_of(1)
    (message,) = queue.pop("billing", "orders", invisible_ms=5_000)
    handles = [message.handle]
    for _ in range(3):
        handles.append(queue.change("billing", handles[-1], 5_000))
    assert len(set(handles)) == 4
    for dead in handles[:-1]:
        with pytest.raises(Conflict):
            queue.change("billing", dead, 5_000)
    assert queue.ack("billing", handles[:-1]).acked == 0
    assert bodies(later(queue)) == [b"0"]


def test_8332_the_attempt_limit_holds_for_silent_consumers() -> None:
    queue = queue_of(1, max_attempts=4)
    attempts = [message.delivery_attempt for message in queue.pop("billing", "orders")]
    while popped := later(queue):
        attempts += [message.delivery_attempt for message in popped]
    assert attempts == [1, 2, 3, 4]
    assert len(queue.dead_letters("billing")) == 1


def test_a_message_whose_body_is_gone_leaves_a_trace() -> None:
    queue = queue_of(1)
    queue.pop("billing", "orders", invisible_ms=1_000)
    queue.expire("orders", PARTITION, 1)
    assert later(queue) == []
    assert list(queue.tables.lost) == [(queue.lanes("billing", "orders")[0], 0)]


def test_names_that_join_to_the_same_text_do_not_meet() -> None:
    """Group a_b of topic c and group a of topic b_c have one retry name, and nothing else in common."""
    queue = MemoryQueue()
    for topic in ("c", "b_c"):
        queue.create_topic(topic)
        queue.send(topic, topic.encode())
    for group, topic in (("a_b", "c"), ("a", "b_c")):
        queue.put_group(group)
        queue.pop(group, topic)
    queue.advance(SETTLED)
    queue.run_jobs()
    assert bodies(queue.pop("a_b", "c")) == [b"c"]
    assert bodies(queue.pop("a", "b_c")) == [b"b_c"]


def test_2604_a_reset_drops_the_retries_of_its_topic_alone() -> None:
    queue = queue_of(1)
    queue.create_topic("other")
    queue.send("other", b"other")
    queue.pop("billing", "orders")
    queue.pop("billing", "other")
    queue.advance(SETTLED)
    queue.run_jobs()
    queue.reset_offsets("billing", "orders", 1, keep_retries=False)
    assert queue.pop("billing", "orders") == []
    assert bodies(queue.pop("billing", "other")) == [b"other"]


def test_9583_the_handle_after_a_renewal_is_the_one_that_counts() -> None:
    queue = queue_of(1)
    (message,) = queue.pop("billing", "orders")
    new = queue.change("billing", message.handle, 60_000)
    assert queue.ack("billing", [message.handle]).failed == {0: "handle_expired"}
    assert queue.ack("billing", [new]).acked == 1
    assert later(queue) == []


def test_8772_a_poison_message_of_an_ordered_group_does_not_block_for_ever() -> None:
    queue = queue_of(2, order=True, max_attempts=3)
    popped = queue.pop("billing", "orders", 1)
    while bodies(popped) == [b"0"]:
        queue.advance(SETTLED)
        popped = queue.pop("billing", "orders", 1)
    assert bodies(popped) == [b"1"]
    assert [row.body for row in queue.dead_letters("billing")] == [b"0"]


def test_a_done_record_seen_before_its_checkpoint_counts() -> None:
    """Any order of what the log holds, also of the revive job's own records."""
    checkpoint = checkpoint_of(0, 2)
    states = fold({}, [Done(checkpoint.key, 0b01, 60_000), checkpoint])
    assert [one.bits for one in due(states.values(), 10**9)] == [0b10]
