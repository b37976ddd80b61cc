"""The in-memory match, case by case (SPEC POP-7 to POP-9, POP-13, POP-14)."""

from __future__ import annotations

import pytest

from deltamq.mq.errors import Conflict
from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import LaneKey, Pop, Span, spans_of
from deltamq.mq.queue.lane import AckResult, BufferSettings, CommitOffset, HeldState, Lane, StoreCheckpoint
from deltamq.mq.queue.progress import Committed
from deltamq.mq.queue.revive_log import Ack, Record, fold

KEY = LaneKey("id-1", "billing", False, "orders@A")
ACKED = AckResult(0, 0, None)
ALL = 0xFFFF_FFFF


def pop_of(now_ms: int = 0, invisible_ms: int = 60_000) -> Pop:
    return Pop(
        topic="orders",
        topic_id="id-1",
        group="billing",
        epoch=1,
        partition="orders@A",
        pop_time_ms=now_ms,
        invisible_ms=invisible_ms,
        revive_queue=0,
    )


class Bench:
    """A buffer with one lane, popped in batches of 32."""

    def __init__(self, settings: BufferSettings | None = None) -> None:
        self.buffer = Buffer(settings)
        self.lane = self.buffer.open_lane(KEY, Committed(1, 0), tenure=1, now_ms=0)

    def pop(self, count: int = 32, *, now_ms: int = 0, invisible_ms: int = 60_000) -> list[StoreCheckpoint]:
        start, _ = self.buffer.next_read(self.lane)
        spans = spans_of(range(start, start + count))
        return self.buffer.hold(self.lane, pop_of(now_ms, invisible_ms), spans, start + count, now_ms)

    def ack(self, start: int, bits: int = ALL, *, popped_ms: int = 0, now_ms: int = 0) -> AckResult:
        return self.buffer.ack(self.lane, start, popped_ms, bits, now_ms, tenure=1)

    @property
    def commits(self) -> list[int]:
        return [commit.offset for commit in self.buffer.commits()]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_pop_13_what_is_acked_in_time_is_never_stored(bench: Bench) -> None:
    assert bench.pop() == []
    assert bench.ack(0) == ACKED
    assert bench.buffer.tick(10**9) == []
    assert len(bench.buffer) == 0 and not bench.lane.live
    assert bench.buffer.commits() == [CommitOffset(KEY, 1, 32)]
    assert bench.buffer.commits() == []


def test_pop_08_acking_twice_is_harmless(bench: Bench) -> None:
    bench.pop()
    assert bench.ack(0, 0b11) == bench.ack(0, 0b11) == ACKED
    assert bench.ack(0) == bench.ack(0) == ACKED
    assert bench.commits == [32]


def test_pop_14_the_offset_moves_in_order_of_pop(bench: Bench) -> None:
    for _ in range(3):
        bench.pop()
    bench.ack(32)
    assert bench.commits == [] and bench.lane.committed == 0
    bench.ack(64)
    bench.ack(0)
    assert bench.commits == [96]


def test_pop_13_a_checkpoint_leaves_after_ten_seconds_with_its_acks(bench: Bench) -> None:
    bench.pop()
    bench.ack(0, 0b101)
    assert bench.buffer.tick(9_999) == []
    (leaving,) = bench.buffer.tick(10_000)
    assert leaving.checkpoint.bit_map == 0b101
    assert bench.commits == [], "not stored yet"
    bench.buffer.stored(leaving)
    assert bench.commits == [32]
    assert len(bench.buffer) == 0


def test_pop_13_a_checkpoint_leaves_three_seconds_before_it_is_due(bench: Bench) -> None:
    bench.pop(invisible_ms=5_000)
    assert bench.buffer.tick(1_999) == []
    assert len(bench.buffer.tick(2_000)) == 1


def test_pop_13_a_checkpoint_due_within_4_5_s_goes_straight_to_the_log(bench: Bench) -> None:
    (decision,) = bench.pop(invisible_ms=4_499)
    assert bench.pop(invisible_ms=4_500) == []
    assert bench.lane.committed == 0
    bench.buffer.stored(decision)
    assert bench.commits == [32]


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("switched off", BufferSettings(enabled=False)),
        ("the whole buffer is full", BufferSettings(checkpoints_max=1, partition_checkpoints_max=9)),
        ("the partition's share is full", BufferSettings(partition_checkpoints_max=1)),
    ],
)
def test_pop_13_beyond_its_limits_the_buffer_stores(name: str, limits: BufferSettings) -> None:
    bench = Bench(limits)
    first, second = bench.pop(), bench.pop()
    assert len(first) == (0 if limits.enabled else 1)
    assert len(second) == 1
    bench.buffer.stored(second[0])
    assert bench.pop(), "stored checkpoints do not make room that memory has not"


def test_pop_13_acked_checkpoints_make_room() -> None:
    bench = Bench(BufferSettings(partition_checkpoints_max=2))
    assert bench.pop(64) == []
    assert len(bench.pop()) == 1
    bench.ack(0)
    bench.ack(32)
    assert bench.pop(now_ms=1) == []


def test_pop_13_a_stop_stores_everything_with_its_acks_and_takes_no_more(bench: Bench) -> None:
    bench.pop(64)
    bench.ack(32, 0b1)
    stored = bench.buffer.stop()
    assert [d.checkpoint.bit_map for d in stored] == [0, 1]
    for decision in stored:
        bench.buffer.stored(decision)
    assert bench.commits == [64]
    assert len(bench.pop()) == 1


def test_meta_01_a_lane_that_goes_to_another_process_is_stored_alone_with_its_acks(bench: Bench) -> None:
    bench.pop(64)
    bench.ack(32, 0b1)
    stored = bench.buffer.leave([bench.lane])
    assert [d.checkpoint.bit_map for d in stored] == [0, 1]
    assert bench.buffer.leave([bench.lane]) == [], "what is being stored does not leave twice"
    assert bench.buffer.tick(10**9) == [], "nor when it falls due"
    for decision in stored:
        bench.buffer.stored(decision)
    assert bench.commits == [64] and len(bench.buffer) == 0
    assert bench.pop() == [], "the others go on in memory"


def test_pop_13_an_ack_for_a_checkpoint_that_is_leaving_goes_to_the_log(bench: Bench) -> None:
    bench.pop()
    (leaving,) = bench.buffer.tick(10_000)
    result = bench.ack(0, 0b110, now_ms=10_000)
    assert (result.store, result.refused, result.held) == (0b110, 0, leaving.held)
    assert leaving.checkpoint.bit_map == 0
    bench.buffer.stored(leaving)
    assert bench.buffer.ack_stored(leaving.held, 0b110, 10_001)
    assert bench.ack(0, 0b110, now_ms=10_002) == ACKED
    assert bench.ack(0, 0b111, now_ms=10_002).store == 0b001


def test_pop_08_an_ack_counts_only_when_the_log_has_it(bench: Bench) -> None:
    (decision,) = bench.pop(invisible_ms=2_000)
    bench.buffer.stored(decision)
    lost = bench.ack(0, 0b1)
    assert lost.held is not None
    bench.buffer.ack_failed(lost.held, lost.store)
    assert bench.ack(0, 0b1).store == 0b1, "the client's repetition is stored, not believed"


def test_pop_08_an_ack_that_was_stored_too_late_is_expired(bench: Bench) -> None:
    (decision,) = bench.pop(invisible_ms=2_000)
    bench.buffer.stored(decision)
    result = bench.ack(0, 0b1, now_ms=1_999)
    assert result.held is not None
    assert not bench.buffer.ack_stored(result.held, result.store, 2_300)
    assert bench.ack(0, 0b10, now_ms=2_000).refused == 0b10


def test_pop_13_a_stored_checkpoint_is_forgotten_when_it_is_due(bench: Bench) -> None:
    (decision,) = bench.pop(invisible_ms=2_000)
    bench.buffer.stored(decision)
    assert bench.lane.in_flight == 32
    assert bench.buffer.tick(2_000) == []
    assert not bench.lane.live and bench.lane.in_flight == 0


def test_pop_13_a_stored_checkpoint_is_forgotten_when_all_is_acked(bench: Bench) -> None:
    (decision,) = bench.pop(3, invisible_ms=2_000)
    bench.buffer.stored(decision)
    result = bench.ack(0, 0b111)
    assert result.held is not None
    bench.buffer.ack_stored(result.held, result.store, 5)
    assert not bench.lane.live
    assert bench.ack(0, 0b111, now_ms=6) == ACKED


def test_pop_13_a_store_that_failed_is_tried_again(bench: Bench) -> None:
    (decision,) = bench.pop(invisible_ms=2_000)
    bench.buffer.store_failed(decision, 50)
    assert bench.lane.committed == 0
    (again,) = bench.buffer.tick(200)
    bench.buffer.stored(again)
    assert bench.commits == [32]


def test_pop_13_what_was_acked_while_storing_failed_is_over(bench: Bench) -> None:
    (decision,) = bench.pop(1, invisible_ms=2_000)
    result = bench.ack(0, 0b1)
    assert result.held is not None
    bench.buffer.ack_stored(result.held, result.store, 1)
    bench.buffer.store_failed(decision, 50)
    assert bench.buffer.tick(10_000) == []
    assert bench.commits == [1] and len(bench.buffer) == 0


def test_cons_3_filtered_messages_count_as_consumed(bench: Bench) -> None:
    bench.buffer.skip(bench.lane, 10)
    assert bench.commits == [10]
    bench.pop(2)
    bench.buffer.hold(bench.lane, pop_of(), [], 40, 0)
    assert bench.buffer.next_read(bench.lane) == (40, None)
    assert bench.commits == [], "not before what was popped earlier"
    bench.ack(10, 0b11)
    assert bench.commits == [40]


def test_pop_04_a_filtered_pop_has_the_offset_after_the_last_message_read(bench: Bench) -> None:
    spans = spans_of([3, 5, 9])
    assert bench.buffer.hold(bench.lane, pop_of(), spans, 20, 0) == []
    assert bench.ack(3, 0b111) == ACKED
    assert bench.commits == [20]


def test_a_commit_from_elsewhere_moves_the_offset_forward_only(bench: Bench) -> None:
    bench.pop()
    bench.buffer.commit_to(bench.lane, 100)
    bench.buffer.commit_to(bench.lane, 50)
    assert bench.commits == [100]
    assert bench.buffer.next_read(bench.lane) == (100, None)
    bench.ack(0)
    assert bench.lane.committed == 100


# Change of the invisible time.


def test_pop_09_the_old_handle_is_dead_when_the_new_checkpoint_is_stored(bench: Bench) -> None:
    bench.pop(2)
    change = bench.buffer.change(bench.lane, 0, 0, 1, tenure=1, now_ms=5, invisible_ms=30_000, revive_queue=3)
    assert change.checkpoint.span == Span(1, 1)
    bench.ack(0, 0b01)
    assert bench.lane.committed == 0, "the new checkpoint is not stored yet"
    assert bench.buffer.changed(change, 6)
    assert bench.commits == [2]
    assert bench.ack(0, 0b11, now_ms=7) == AckResult(0, 0b10, None), "also when all of it is done"
    new = bench.ack(1, 0b1, popped_ms=5, now_ms=8)
    assert new.store == 0b1


def test_pop_09_an_ack_with_the_dead_handle_is_refused(bench: Bench) -> None:
    bench.pop(3)
    change = bench.buffer.change(bench.lane, 0, 0, 1, tenure=1, now_ms=5, invisible_ms=30_000, revive_queue=3)
    bench.buffer.changed(change, 6)
    assert bench.ack(0, 0b11) == AckResult(0, 0b10, None)
    assert bench.ack(0, 0b111) == AckResult(0, 0b10, None)
    assert bench.ack(0, 0b111) == AckResult(0, 0b10, None)
    assert bench.commits == [3]
    bench.buffer.tick(60_000)
    assert not bench.lane.live, "until it expires"


def test_pop_09_a_message_is_changed_or_acked_but_not_both(bench: Bench) -> None:
    bench.pop(4)
    bench.ack(0, 0b0001)
    with pytest.raises(Conflict) as refused:
        bench.buffer.change(bench.lane, 0, 0, 0, tenure=1, now_ms=5, invisible_ms=1, revive_queue=3)
    assert refused.value.code == "handle_expired"
    bench.buffer.change(bench.lane, 0, 0, 1, tenure=1, now_ms=5, invisible_ms=1, revive_queue=3)
    with pytest.raises(Conflict):
        bench.buffer.change(bench.lane, 0, 0, 1, tenure=1, now_ms=5, invisible_ms=1, revive_queue=3)


def test_pop_09_an_ack_under_way_keeps_a_change_out(bench: Bench) -> None:
    """A renewal that races with the handler's ack must not bring the message back."""
    (decision,) = bench.pop(1, invisible_ms=2_000)
    bench.buffer.stored(decision)
    bench.ack(0, 0b1)
    with pytest.raises(Conflict):
        bench.buffer.change(bench.lane, 0, 0, 0, tenure=1, now_ms=5, invisible_ms=1, revive_queue=3)


@pytest.mark.parametrize("invisible_ms", [60_000, 2_000])
def test_pop_09_a_change_under_way_keeps_an_ack_out(bench: Bench, invisible_ms: int) -> None:
    """The new checkpoint brings the message back, so the old handle's ack must not be believed; others' are."""
    for decision in bench.pop(3, invisible_ms=invisible_ms):
        bench.buffer.stored(decision)
    change = bench.buffer.change(bench.lane, 0, 0, 1, tenure=1, now_ms=5, invisible_ms=1, revive_queue=3)
    result = bench.ack(0, 0b011, now_ms=6)
    assert result.refused == 0b010
    if result.held is not None:
        assert result.store == 0b001 and bench.buffer.ack_stored(result.held, result.store, 7)
    assert bench.buffer.changed(change, 8)
    assert bench.ack(0, 0b010, now_ms=9).refused == 0b010
    assert bench.lane.in_flight == 2, "the third message, and the changed one under its new handle"


def test_pop_09_a_change_that_failed_leaves_the_old_handle_alive(bench: Bench) -> None:
    bench.pop(1)
    change = bench.buffer.change(bench.lane, 0, 0, 0, tenure=1, now_ms=5, invisible_ms=1, revive_queue=3)
    bench.buffer.change_failed(change)
    assert bench.ack(0, 0b1) == ACKED
    assert bench.commits == [1]


def test_pop_09_a_change_can_be_changed_again(bench: Bench) -> None:
    bench.pop(1)
    first = bench.buffer.change(bench.lane, 0, 0, 0, tenure=1, now_ms=0, invisible_ms=30_000, revive_queue=3)
    bench.buffer.changed(first, 0)
    second = bench.buffer.change(bench.lane, 0, 1, 0, tenure=1, now_ms=0, invisible_ms=30_000, revive_queue=3)
    bench.buffer.changed(second, 0)
    assert second.checkpoint.pop.pop_time_ms == 2
    with pytest.raises(Conflict):
        bench.buffer.change(bench.lane, 0, 1, 0, tenure=1, now_ms=0, invisible_ms=1, revive_queue=3)


def test_pop_09_a_change_stored_too_late_says_so(bench: Bench) -> None:
    (decision,) = bench.pop(1, invisible_ms=2_000)
    bench.buffer.stored(decision)
    change = bench.buffer.change(bench.lane, 0, 0, 0, tenure=1, now_ms=1_999, invisible_ms=30_000, revive_queue=3)
    assert not bench.buffer.changed(change, 2_300)
    with pytest.raises(Conflict):
        bench.buffer.change(bench.lane, 0, 0, 0, tenure=1, now_ms=2_300, invisible_ms=30_000, revive_queue=3)


def test_pop_11_a_message_can_be_condemned(bench: Bench) -> None:
    bench.pop(1)
    change = bench.buffer.change(
        bench.lane, 0, 0, 0, tenure=1, now_ms=9, invisible_ms=0, revive_queue=3, dead_reason="no such customer"
    )
    assert change.checkpoint.dead_reason == "no such customer"
    assert change.checkpoint.revive_time_ms == 9


# After a restart.


def restarted(committed: int, log: list[Record], now_ms: int = 100) -> tuple[Buffer, Lane]:
    buffer = Buffer()
    states = fold({}, log).values()
    return buffer, buffer.open_lane(KEY, Committed(1, committed), tenure=2, now_ms=now_ms, states=states)


def test_pop_14_a_crash_forgets_only_what_was_in_memory(bench: Bench) -> None:
    bench.pop(32)
    (stored,) = bench.pop(32, invisible_ms=4_000)
    bench.buffer.stored(stored)
    bench.pop(32)
    assert bench.lane.committed == 0, "the first checkpoint is only in memory"

    buffer, lane = restarted(0, [stored.checkpoint])
    assert buffer.next_read(lane) == (0, 32), "up to what is stored"
    buffer.hold(lane, pop_of(100), spans_of(range(32)), 32, 100)
    assert buffer.next_read(lane) == (64, None), "and on behind it"
    buffer.ack(lane, 0, 100, ALL, 101, tenure=2)
    assert [commit.offset for commit in buffer.commits()] == [64]


def test_pop_14_what_is_stored_can_be_acked_after_a_crash(bench: Bench) -> None:
    (stored,) = bench.pop(3, invisible_ms=4_000)
    bench.buffer.stored(stored)
    held = stored.held
    _, lane = restarted(0, [stored.checkpoint, Ack(stored.checkpoint.key, 0b001, 4_000)])
    assert lane.in_flight == 2
    (restored,) = lane.live.values()
    assert (restored.state, restored.spent) == (HeldState.STORED, 0b001)
    assert restored.span == held.span


def test_pop_14_a_handle_for_more_messages_than_its_checkpoint_has_is_of_before_a_crash(bench: Bench) -> None:
    (stored,) = bench.pop(2, invisible_ms=4_000)
    bench.buffer.stored(stored)
    buffer, lane = restarted(0, [stored.checkpoint])
    assert buffer.ack(lane, 0, 0, 0b111, 1, tenure=1) == AckResult(0, 0b111, None)
    with pytest.raises(Conflict, match="newer handle"):
        buffer.change(lane, 0, 0, 2, tenure=1, now_ms=1, invisible_ms=30_000, revive_queue=3)
    assert lane.in_flight == 2


def test_pop_09_a_dead_handle_is_known_after_a_crash(bench: Bench) -> None:
    (stored,) = bench.pop(2, invisible_ms=4_000)
    bench.buffer.stored(stored)
    change = bench.buffer.change(bench.lane, 0, 0, 1, tenure=1, now_ms=5, invisible_ms=30_000, revive_queue=3)
    log: list[Record] = [stored.checkpoint, change.checkpoint, Ack(stored.checkpoint.key, 0b01, 4_000)]
    buffer, lane = restarted(0, log, now_ms=0)
    assert buffer.ack(lane, 0, 0, 0b11, 6, tenure=1) == AckResult(0, 0b10, None)
    buffer.tick(4_000)
    assert len(lane.live) == 1


def test_pop_14_finished_and_stored_is_not_popped_again(bench: Bench) -> None:
    (stored,) = bench.pop(3, invisible_ms=4_000)
    buffer, lane = restarted(0, [stored.checkpoint, Ack(stored.checkpoint.key, 0b111, 4_000)])
    assert not lane.live
    assert buffer.next_read(lane) == (3, None)
    assert [commit.offset for commit in buffer.commits()] == [3]


def test_pop_14_an_ack_from_before_a_crash_that_forgot_it_is_refused(bench: Bench) -> None:
    """Its messages are popped again; believing the ack would lose the one that this later pop's consumer fails."""
    bench.pop(32)
    buffer, lane = restarted(0, [], now_ms=100)
    buffer.hold(lane, pop_of(100), spans_of(range(32)), 32, 100)
    assert buffer.ack(lane, 0, 0, ALL, 101, tenure=1) == AckResult(0, ALL, None)
    assert lane.in_flight == 32
    with pytest.raises(Conflict):
        buffer.change(lane, 0, 0, 0, tenure=1, now_ms=101, invisible_ms=1, revive_queue=1)


def test_pop_08_an_ack_that_a_crash_forgot_is_refused_though_the_clock_was_ahead_before_it(bench: Bench) -> None:
    bench.pop(32, now_ms=5_000)
    buffer, lane = restarted(0, [], now_ms=100)
    assert buffer.ack(lane, 0, 5_000, ALL, 101, tenure=1) == AckResult(0, ALL, None)
    # Popped again at the very time of before, and with fewer messages: a bit of the old handle is another message.
    buffer.hold(lane, pop_of(5_000), [Span(0, 2, (0, 9))], 32, 5_000)
    assert buffer.ack(lane, 0, 5_000, 0b10, 5_001, tenure=1) == AckResult(0, 0b10, None)
    with pytest.raises(Conflict):
        buffer.change(lane, 0, 5_000, 1, tenure=1, now_ms=5_001, invisible_ms=1, revive_queue=1)
    assert buffer.ack(lane, 0, 5_000, 0b11, 5_001, tenure=2) == ACKED
    assert buffer.ack(lane, 0, 5_000, 0b11, 5_001, tenure=2) == ACKED, "twice is harmless"


def test_pop_08_an_ack_is_refused_when_the_clock_is_set_back_after_its_time(bench: Bench) -> None:
    (decision,) = bench.pop(2, invisible_ms=4_000)
    bench.buffer.stored(decision)
    bench.buffer.tick(4_200)
    assert bench.lane.waiting == 2
    assert bench.ack(0, 0b11, now_ms=3_000) == AckResult(0, 0b11, None)


def test_pop_14_what_is_due_or_of_another_epoch_is_not_restored(bench: Bench) -> None:
    (stored,) = bench.pop(3, invisible_ms=4_000)
    _, lane = restarted(0, [stored.checkpoint], now_ms=4_000)
    assert not lane.live and list(lane.covered) == [(0, 3)]
    buffer = Buffer()
    states = fold({}, [stored.checkpoint]).values()
    other = buffer.open_lane(KEY, Committed(2, 0), tenure=1, now_ms=5, states=states)
    assert buffer.next_read(other) == (0, None) and not other.live


def test_pop_14_covered_ranges_are_joined() -> None:
    log: list[Record] = []
    for start in (64, 0, 32, 96, 200):
        (decision,) = Buffer(BufferSettings(enabled=False)).hold(
            Buffer().open_lane(KEY, Committed(1, start), tenure=1, now_ms=0), pop_of(), [Span(start, 32)], start + 32, 0
        )
        log.append(decision.checkpoint)
    _, lane = restarted(40, log)
    assert list(lane.covered) == [(40, 128), (200, 232)]


def test_pop_18_a_dropped_lane_leaves_nothing(bench: Bench) -> None:
    bench.pop(64)
    bench.ack(0)
    bench.buffer.drop_lane(KEY)
    bench.buffer.drop_lane(KEY)
    assert len(bench.buffer) == 0
    assert bench.buffer.lane(KEY) is None
    assert bench.buffer.commits() == [] and bench.buffer.tick(10**9) == []


def test_limits_must_leave_time_to_leave() -> None:
    with pytest.raises(ValueError, match="leave"):
        BufferSettings(stay_timeout_ms=5_000)


def test_illegal_transitions_are_programmer_errors() -> None:
    with pytest.raises(AssertionError, match="does not go"):
        HeldState.DONE.to(HeldState.HELD)
