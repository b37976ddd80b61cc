"""The in-memory twin as a user sees it: POP, retries, dead letters, delays, resets (SPEC POP, RETRY)."""

from __future__ import annotations

import textwrap

import pytest

from deltamq.mq.errors import Conflict, NotFound, Refused, Unprocessable
from deltamq.mq.meta.group_settings import InvisibleBounds
from deltamq.mq.queue.progress import Start, StartKind
from deltamq.mq.queue.revive import LostReason
from deltamq.mq.testing import queue as memory
from deltamq.mq.testing.broker import Popped
from deltamq.mq.testing.log import Origin
from deltamq.mq.testing.queue import MemoryQueue

SETTLED = 61_000


def queue_of(count: int = 3, **settings: object) -> MemoryQueue:
    queue = MemoryQueue(now_ms=1_000, invisible=InvisibleBounds(min_ms=100))
    queue.create_topic("orders")
    queue.put_group("billing", **settings)
    for number in range(count):
        queue.send("orders", b"%d" % number, key=f"k{number}", tag="even" if number % 2 == 0 else "odd")
    return queue


def bodies(popped: list[Popped]) -> list[bytes]:
    return [message.row.body for message in popped]


def handles(popped: list[Popped]) -> list[str]:
    return [message.handle for message in popped]


def test_pop_03_a_popped_message_is_invisible_to_its_group_alone() -> None:
    queue = queue_of()
    queue.put_group("shipping")
    assert bodies(queue.pop("billing", "orders")) == [b"0", b"1", b"2"]
    assert queue.pop("billing", "orders") == []
    assert bodies(queue.pop("shipping", "orders")) == [b"0", b"1", b"2"]


def test_pop_03_it_comes_again_with_a_higher_attempt_when_its_time_is_over() -> None:
    queue = queue_of()
    first = queue.pop("billing", "orders")
    queue.ack("billing", handles(first)[:1])
    queue.advance(SETTLED)
    assert queue.ack("billing", handles(first)[1:]).failed == {0: "handle_expired", 1: "handle_expired"}
    assert queue.pop("billing", "orders") == [], "only the revive job brings it back"
    queue.run_revive()
    again = queue.pop("billing", "orders")
    assert bodies(again) == [b"1", b"2"]
    assert [message.delivery_attempt for message in again] == [2, 2]


def test_retry_1_a_retried_message_keeps_all_that_its_producer_gave_it() -> None:
    queue = MemoryQueue()
    queue.create_topic("orders")
    queue.put_group("billing")
    queue.send("orders", b"x", key="k", tag="t", headers={"h": "1"}, message_id="mine")
    queue.pop("billing", "orders")
    for attempt in (2, 3):
        queue.advance(SETTLED)
        queue.run_jobs()
        (again,) = queue.pop("billing", "orders")
        row = again.row
        assert (row.body, row.key, row.tag, row.headers, row.message_id) == (b"x", "k", "t", {"h": "1"}, "mine")
        assert row.origin == Origin("orders", "orders@memory", 0)
        assert again.delivery_attempt == attempt == row.reconsume_times + 1


def test_retry_3_after_the_last_attempt_it_is_dead_with_its_reason() -> None:
    queue = queue_of(1, max_attempts=2)
    for _ in range(2):
        queue.pop("billing", "orders")
        queue.advance(SETTLED)
        queue.run_jobs()
    assert queue.pop("billing", "orders") == []
    (dead,) = queue.dead_letters("billing")
    assert (dead.body, dead.headers, dead.reconsume_times) == (b"0", {"mq-dead-reason": "max_attempts"}, 2)
    assert dead.origin == Origin("orders", "orders@memory", 0)


def test_retry_1_a_failure_of_one_group_is_not_seen_by_another() -> None:
    queue = queue_of(1)
    queue.put_group("shipping")
    queue.ack("shipping", handles(queue.pop("shipping", "orders")))
    queue.pop("billing", "orders")
    queue.advance(SETTLED)
    queue.run_jobs()
    assert queue.pop("shipping", "orders") == []
    assert len(queue.pop("billing", "orders")) == 1


def test_pop_10_a_nack_waits_by_the_policy() -> None:
    queue = queue_of(1, retry_policy=[5_000, 10_000])
    (first,) = queue.pop("billing", "orders")
    queue.nack("billing", first.handle)
    queue.advance(4_999)
    queue.run_jobs()
    assert queue.pop("billing", "orders") == []
    queue.advance(302)
    queue.run_jobs()
    (second,) = queue.pop("billing", "orders")
    queue.nack("billing", second.handle)
    queue.advance(9_999)
    queue.run_jobs()
    assert queue.pop("billing", "orders") == []
    queue.advance(302)
    queue.run_jobs()
    (third,) = queue.pop("billing", "orders")
    queue.nack("billing", third.handle, delay_ms=0)
    queue.advance(301)
    queue.run_jobs()
    assert [message.delivery_attempt for message in queue.pop("billing", "orders")] == [4]


def test_pop_10_a_nack_of_the_last_attempt_is_a_death() -> None:
    queue = queue_of(1, max_attempts=1)
    (message,) = queue.pop("billing", "orders")
    queue.nack("billing", message.handle)
    queue.advance(301)
    queue.run_jobs()
    assert [row.headers for row in queue.dead_letters("billing")] == [{"mq-dead-reason": "max_attempts"}]


def test_retry_3_a_consumer_can_condemn_a_message() -> None:
    queue = queue_of(2)
    first, second = queue.pop("billing", "orders")
    queue.dead("billing", first.handle, "no such customer")
    with pytest.raises(Conflict):
        queue.dead("billing", first.handle, "again")
    assert queue.ack("billing", [first.handle, second.handle]).failed == {0: "handle_expired"}
    queue.advance(301)
    queue.run_jobs()
    (dead,) = queue.dead_letters("billing")
    assert (dead.body, dead.headers["mq-dead-reason"], dead.reconsume_times) == (b"0", "no such customer", 1)
    assert queue.lag("billing", "orders") == 0


def test_pop_09_a_change_keeps_the_message_longer() -> None:
    queue = queue_of(1)
    (message,) = queue.pop("billing", "orders", invisible_ms=1_000)
    new = queue.change("billing", message.handle, 5_000)
    queue.advance(2_000)
    queue.run_jobs()
    assert queue.pop("billing", "orders") == []
    assert queue.ack("billing", [message.handle]).failed == {0: "handle_expired"}
    assert queue.ack("billing", [new]).acked == 1
    queue.advance(SETTLED)
    queue.run_jobs()
    assert queue.pop("billing", "orders") == []


@pytest.mark.parametrize("invisible_ms", [99, -1, 12 * 3_600_000 + 1])
def test_pop_03_an_invisible_time_out_of_bounds_is_refused(invisible_ms: int) -> None:
    queue = queue_of(1)
    with pytest.raises(Unprocessable):
        queue.pop("billing", "orders", invisible_ms=invisible_ms)
    (message,) = queue.pop("billing", "orders")
    with pytest.raises(Unprocessable):
        queue.change("billing", message.handle, invisible_ms)
    with pytest.raises(Unprocessable):
        queue.nack("billing", message.handle, delay_ms=invisible_ms)


def test_cons_3_messages_that_are_filtered_out_count_as_consumed() -> None:
    queue = queue_of(5)
    popped = queue.pop("billing", "orders", tags={"even"})
    assert bodies(popped) == [b"0", b"2", b"4"]
    queue.ack("billing", handles(popped))
    queue.advance(1)
    assert queue.lag("billing", "orders") == 0
    assert queue.pop("billing", "orders") == []


def test_pop_07_last_starts_with_the_last_message() -> None:
    queue = queue_of(3, consume_from="last")
    assert bodies(queue.pop("billing", "orders")) == [b"2"]
    assert queue.lag("billing", "orders") == 1


def test_cons_2_a_time_starts_at_the_first_message_after_it() -> None:
    queue = queue_of(1, consume_from="1970-01-01T00:00:02Z")
    queue.advance(1_000)
    queue.send("orders", b"late")
    assert bodies(queue.pop("billing", "orders")) == [b"late"]


def test_pop_01_all_partitions_of_a_topic_are_popped() -> None:
    queue = MemoryQueue()
    queue.create_topic("orders", partitions=4)
    queue.put_group("billing")
    for number in range(100):
        queue.send("orders", b"%d" % number, key=f"k{number}")
    popped = queue.pop("billing", "orders", 1_000)
    assert len(set(bodies(popped))) == 100
    assert len({message.partition for message in popped}) == 4


def test_retry_4_a_delayed_message_comes_when_it_is_due_and_once() -> None:
    queue = queue_of(0)
    queue.send("orders", b"later", delay_ms=5_000)
    queue.send("orders", b"at once", deliver_time_ms=0)
    queue.run_jobs()
    assert bodies(queue.pop("billing", "orders")) == [b"at once"]
    queue.advance(4_999)
    queue.run_jobs()
    assert queue.pop("billing", "orders") == []
    queue.advance(1)
    queue.run_delay(steps=1)
    queue.run_delay()
    queue.run_delay()
    assert bodies(queue.pop("billing", "orders")) == [b"later"]
    assert queue.pop("billing", "orders") == []


def test_retry_4_a_delayed_message_can_be_cancelled_before_it_is_due() -> None:
    queue = queue_of(0)
    queue.send("orders", b"never", delay_ms=5_000, message_id="a")
    queue.send("orders", b"later", delay_ms=5_000, message_id="b")
    queue.cancel("orders", "a")
    queue.advance(5_000)
    with pytest.raises(Conflict):
        queue.cancel("orders", "b")
    with pytest.raises(NotFound):
        queue.cancel("orders", "c")
    queue.run_jobs()
    assert bodies(queue.pop("billing", "orders")) == [b"later"]


def test_retry_4_an_id_may_be_used_again_after_its_message_was_cancelled() -> None:
    queue = queue_of(0)
    queue.send("orders", b"first", delay_ms=5_000, message_id="a")
    queue.cancel("orders", "a")
    queue.send("orders", b"second", delay_ms=6_000, message_id="a")
    queue.advance(5_500)
    queue.run_jobs()
    assert queue.pop("billing", "orders") == []
    queue.advance(500)
    queue.run_jobs()
    assert bodies(queue.pop("billing", "orders")) == [b"second"]


def test_pop_18_after_a_reset_old_handles_are_refused_and_messages_come_anew() -> None:
    queue = queue_of(2)
    old = queue.pop("billing", "orders")
    queue.reset_offsets("billing", "orders", Start())
    assert queue.ack("billing", handles(old)).failed == {0: "handle_expired", 1: "handle_expired"}
    with pytest.raises(Conflict):
        queue.change("billing", old[0].handle, 1_000)
    new = queue.pop("billing", "orders")
    assert bodies(new) == [b"0", b"1"]
    queue.advance(SETTLED)
    queue.run_jobs()
    assert len(queue.pop("billing", "orders")) == 2, "not once more for the old checkpoints"


@pytest.mark.parametrize(("keep", "expected"), [(True, [b"0"]), (False, [])])
def test_pop_18_a_reset_keeps_or_drops_retried_messages_as_asked(keep: bool, expected: list[bytes]) -> None:
    queue = queue_of(1)
    queue.pop("billing", "orders")
    queue.advance(SETTLED)
    queue.run_jobs()
    queue.reset_offsets("billing", "orders", Start(StartKind.LAST), keep_retries=keep)
    assert bodies(queue.pop("billing", "orders")) == expected


def test_pop_12_a_topic_that_was_deleted_and_made_again_gets_nothing_of_the_old() -> None:
    queue = queue_of(2)
    old = queue.pop("billing", "orders", 1)
    queue.advance(SETTLED)
    queue.run_jobs()
    queue.delete_topic("orders")
    queue.create_topic("orders")
    queue.send("orders", b"new")
    assert queue.ack("billing", handles(old)).failed == {0: "handle_expired"}
    queue.advance(SETTLED)
    queue.run_jobs()
    assert bodies(queue.pop("billing", "orders")) == [b"new"]


def test_pop_12_a_group_that_was_deleted_and_made_again_gets_nothing_of_the_old() -> None:
    queue = queue_of(1, max_attempts=1)
    old = queue.pop("billing", "orders")
    queue.advance(SETTLED)
    queue.run_jobs()
    assert len(queue.dead_letters("billing")) == 1
    queue.delete_group("billing")
    queue.put_group("billing")
    assert queue.dead_letters("billing") == []
    assert queue.ack("billing", handles(old)).failed == {0: "handle_expired"}
    assert bodies(queue.pop("billing", "orders")) == [b"0"]


def test_pop_12_what_retention_took_is_recorded() -> None:
    queue = queue_of(4)
    queue.pop("billing", "orders", 2, invisible_ms=1_000)
    queue.expire("orders", "orders@memory", 3)
    assert bodies(queue.pop("billing", "orders")) == [b"3"]
    queue.advance(2_000)
    queue.run_jobs()
    lane = queue.lanes("billing", "orders")[0]
    assert queue.tables.lost == {(lane, offset): LostReason.RETENTION for offset in (0, 1, 2)}


@pytest.mark.parametrize("order", [True, "key"])
def test_pop_12_what_was_acknowledged_in_order_is_not_among_the_lost(order: bool) -> None:
    queue = queue_of(4, order=order)
    popped = queue.pop("billing", "orders", 3, invisible_ms=1_000)
    queue.ack("billing", handles(popped)[1:2])
    queue.expire("orders", "orders@memory", 3)
    assert bodies(queue.pop("billing", "orders")) == [b"3"]
    lane = queue.lanes("billing", "orders")[0]
    assert queue.tables.lost == {(lane, offset): LostReason.RETENTION for offset in (0, 2)}


def test_pop_12_what_stored_checkpoints_have_is_not_among_the_lost_after_a_crash() -> None:
    queue = queue_of(4)
    queue.pop("billing", "orders", 1)
    short = queue.pop("billing", "orders", 2, invisible_ms=1_000)
    queue.ack("billing", handles(short))
    queue.crash()
    queue.expire("orders", "orders@memory", 3)
    assert bodies(queue.pop("billing", "orders")) == [b"3"]
    assert queue.tables.lost == {(queue.lanes("billing", "orders")[0], 0): LostReason.RETENTION}


def test_pop_05_bad_handles_are_answered_one_by_one() -> None:
    queue = queue_of(2)
    queue.put_group("shipping")
    good, other = handles(queue.pop("billing", "orders"))
    (foreign, *_) = handles(queue.pop("shipping", "orders"))
    answer = queue.ack("billing", ["nonsense", good, foreign, good, other[:-1] + "!"])
    assert answer.acked == 2
    assert answer.failed == dict.fromkeys((0, 2, 4), "handle_invalid")
    with pytest.raises(Refused):
        queue.change("billing", foreign, 1_000)


def test_pop_13_a_stop_in_order_forgets_nothing() -> None:
    queue = queue_of(3)
    popped = queue.pop("billing", "orders")
    queue.ack("billing", handles(popped)[:1])
    queue.restart()
    assert queue.in_flight("billing", "orders") == 0, "not looked at yet"
    assert queue.pop("billing", "orders") == []
    assert queue.in_flight("billing", "orders") == 2
    assert queue.ack("billing", handles(popped)[1:]).acked == 2
    queue.advance(SETTLED)
    queue.run_jobs()
    assert queue.pop("billing", "orders") == []


@pytest.mark.promise("HOST-3")
@pytest.mark.parametrize("order", [False, True, "key"])
def test_pop_08_an_ack_is_told_the_truth_after_a_crash_that_set_the_clock_back(order: bool | str) -> None:
    queue = queue_of(1, order=order)
    queue.advance(10_000)
    (message,) = queue.pop("billing", "orders")
    queue.now_ms -= 5_000
    queue.crash()
    acked = queue.ack("billing", [message.handle]).acked
    assert acked == (order is not False), "in order a lease is stored, and its handle outlives the crash"
    assert len(queue.pop("billing", "orders")) == 1 - acked


def test_pop_08_a_renewed_handle_may_be_acknowledged_twice_too() -> None:
    queue = queue_of(1)
    (message,) = queue.pop("billing", "orders")
    new = queue.change("billing", message.handle, 5_000)
    assert [queue.ack("billing", [new]).acked for _ in range(2)] == [1, 1]


def test_pop_14_a_crash_brings_back_what_was_only_in_memory() -> None:
    queue = queue_of(3)
    popped = queue.pop("billing", "orders")
    queue.ack("billing", handles(popped)[:1])
    queue.crash()
    assert queue.ack("billing", handles(popped)[1:]).failed == {0: "handle_expired", 1: "handle_expired"}
    again = queue.pop("billing", "orders")
    assert bodies(again) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("order", [True, "key"])
def test_pop_16_and_pop_17_leases_in_order_outlive_a_crash(order: bool) -> None:
    queue = queue_of(4, order=order)
    popped = queue.pop("billing", "orders", 3, invisible_ms=2_000)
    renewed = queue.change("billing", popped[0].handle, 9_000)
    queue.crash()
    assert queue.ack("billing", handles(popped)[:2]).failed == {0: "handle_expired"}
    queue.crash()
    assert bodies(queue.pop("billing", "orders", 1)) == ([] if order is True else [b"3"])
    assert queue.ack("billing", [renewed]).acked == 1
    queue.advance(2_000)
    assert bodies(queue.pop("billing", "orders", 1)) == [b"2"]


def test_meta_3_an_ack_right_after_a_crash_finds_its_stored_checkpoint() -> None:
    queue = queue_of(2)
    popped = queue.pop("billing", "orders", invisible_ms=2_000)
    queue.crash()
    assert queue.ack("billing", handles(popped)[:1]).acked == 1
    queue.crash()
    assert queue.change("billing", popped[1].handle, 3_000)


@pytest.mark.promise("JOB-2")
@pytest.mark.parametrize("order", [True, "key"])
def test_pop_03_what_was_popped_without_order_comes_again_to_pops_in_order(order: bool) -> None:
    queue = queue_of(2)
    queue.pop("billing", "orders", 1)
    # Stored by the first tick, over by the second.
    queue.advance(SETTLED - 1)
    queue.advance(1)
    queue.run_revive()
    popped = queue.pop("billing", "orders", order=order)
    assert sorted(bodies(popped)) == [b"0", b"1"]
    assert queue.ack("billing", handles(popped)).acked == 2


@pytest.mark.parametrize("order", [True, "key"])
def test_pop_16_and_pop_17_the_order_of_a_partition_cannot_be_mixed(order: bool) -> None:
    queue = queue_of(2)
    popped = queue.pop("billing", "orders", 1)
    with pytest.raises(Conflict) as refused:
        queue.pop("billing", "orders", order=order)
    assert refused.value.code == "order_conflict"
    queue.ack("billing", handles(popped))
    ordered = queue.pop("billing", "orders", 1, order=order)
    assert bodies(ordered) == [b"1"]
    for _ in range(2):
        with pytest.raises(Conflict):
            queue.pop("billing", "orders", order=False)
        queue.crash()
    queue.ack("billing", handles(ordered))
    queue.send("orders", b"2", key="k")
    assert bodies(queue.pop("billing", "orders", order=False)) == [b"2"]


def test_pop_16_ordered_messages_are_nacked_changed_and_condemned_in_place() -> None:
    queue = queue_of(3, order=True, retry_policy={"fixed_ms": 2_000})
    first, second, third = queue.pop("billing", "orders")
    queue.nack("billing", first.handle)
    queue.dead("billing", second.handle, "bad")
    assert [row.body for row in queue.dead_letters("billing")] == [b"1"]
    assert queue.dead_letters("billing")[0].headers["mq-dead-reason"] == "bad"
    new = queue.change("billing", third.handle, 5_000)
    assert queue.ack("billing", [third.handle]).failed == {0: "handle_expired"}
    assert queue.ack("billing", [new, third.handle]).acked == 2, "done is done"
    queue.advance(1_999)
    assert queue.pop("billing", "orders") == []
    queue.advance(2)
    assert bodies(queue.pop("billing", "orders")) == [b"0"]
    assert queue.in_flight("billing", "orders") == 1


def test_pop_17_a_changed_limit_holds_for_what_is_in_flight() -> None:
    queue = queue_of(1, order="key", max_attempts=5)
    queue.pop("billing", "orders")
    queue.put_group("billing", max_attempts=1)
    queue.advance(SETTLED)
    assert queue.pop("billing", "orders") == []
    assert len(queue.dead_letters("billing")) == 1


def test_the_example_of_the_module_runs() -> None:
    example = textwrap.dedent((memory.__doc__ or "").split("\n\n")[1])
    names: dict[str, object] = {"MemoryQueue": MemoryQueue}
    exec(example, names)
    queue = names["queue"]
    assert isinstance(queue, MemoryQueue)
    assert queue.lag("billing", "orders") == 0


def test_what_is_not_there_is_not_found() -> None:
    queue = queue_of(0)
    for call in (
        lambda: queue.pop("billing", "nothing"),
        lambda: queue.pop("nobody", "orders"),
        lambda: queue.ack("nobody", []),
        lambda: queue.send("nothing", b""),
        lambda: queue.delete_topic("nothing"),
        lambda: queue.delete_group("nobody"),
    ):
        with pytest.raises(NotFound):
            call()
