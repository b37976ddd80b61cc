"""Exclusive groups on static topics: queues are allocated and locked by name, also while they move (SPEC STATIC)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.limits import LEASE_RENEW_MS, PULL_LOCK_SETTLE_MS
from tests.api.exclusive import Member, exclusive_group
from tests.api.queue_calls import queue_in
from tests.api.routes.test_group_offsets import reset
from tests.api.running import Api, Reply, config_for, running, until
from tests.api.static_queues import Q0, Q1, StaticTopic, hold_seals, on_loop
from tests.set_clock import SetClock

A, B = "broker-a", "broker-b"
#: While the time of locks passes, no lease ends and no authorization.
PATIENT = {"lease_ms": 60_000, "authorization_ms": 600_000}


def bodies(reply_json: dict[str, list[dict[str, str]]]) -> list[str]:
    return [message["body"] for message in reply_json["messages"]]


# One process ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service that seals only when a test asks for it."""
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        hold_seals(found)
        yield found


@pytest.fixture
def made(api: Api, topic: str) -> StaticTopic:
    """A topic with two queues on broker-a, and an exclusive group of the same name."""
    exclusive_group(api, topic)
    found = StaticTopic(api, topic).put(2, A)
    found.send(0, "a0", "a1", "a2")
    return found


def member(made: StaticTopic, name: str) -> Member:
    return Member(made.api, made.name, made.name, name)


def test_static_02_queues_are_allocated_and_locked_by_name(made: StaticTopic) -> None:
    one, other = member(made, "c0"), member(made, "c1")
    assert one.allocated() == [Q0, Q1]
    other.beat()
    assert sorted([*one.allocated(), *other.allocated()]) == [Q0, Q1]
    (mine,) = one.allocated()
    assert one.take(Q0, Q1)["partitions"] == [mine]
    assert one.take(Q0, Q1)["refused"] == [({Q0, Q1} - {mine}).pop()]
    assert one.release(Q0, Q1) == [mine]


def test_static_22_segments_are_not_locked_by_name(made: StaticTopic) -> None:
    client = member(made, "c0")
    client.beat()
    partition = made.queue().leader.partition
    for field in ("partitions", "held"):
        refused = client.send_take(**{field: [partition]}) if field == "held" else client.send_take(partition)
        assert (refused.status, refused.json["code"]) == (422, "physical_partition")


def test_order_04_a_queue_is_read_and_committed_under_its_lock(made: StaticTopic) -> None:
    client, stranger = member(made, "c0"), member(made, "c1")
    client.beat()
    assert client.fetch(Q0).json["code"] == "not_lock_holder"
    numbers = client.take(Q0)["locks"]
    assert bodies(client.fetch(Q0).json) == ["a0", "a1", "a2"]
    assert client.commit(Q0, 2, locks=numbers).json["offsets"] == {Q0: 2}
    assert stranger.commit(Q0, 3).json["code"] == "not_lock_holder"
    client.release(Q0)
    assert client.take(Q0)["offsets"] == {Q0: 2}


def test_static_16_the_start_of_a_lock_is_a_logical_offset(made: StaticTopic) -> None:
    client = member(made, "c0")
    client.beat()
    client.take(Q0)
    client.commit(Q0, 3)
    made.remap(B, mode="available", queues=[0])
    made.send(0, "b0", "b1")
    assert client.take(held=[Q0])["offsets"] == {Q0: 10_000}, "the old segment is consumed"
    client.commit(Q0, 10_001)
    assert client.take(held=[Q0])["offsets"] == {Q0: 10_001}


def test_order_04_a_lock_moves_with_its_queue_between_brokers_of_a_process(made: StaticTopic) -> None:
    holder, stranger = member(made, "c0"), member(made, "c1")
    holder.beat()
    number = holder.take(Q0)["locks"]
    stranger.beat()
    made.remap(B, mode="available", queues=[0])
    made.send(0, "b0")
    assert bodies(holder.fetch(Q0).json) == ["a0", "a1", "a2"]
    assert holder.commit(Q0, 3, locks=number).json["offsets"] == {Q0: 3}
    assert bodies(holder.fetch(Q0, "&offset=3").json) == ["b0"]
    assert stranger.take(Q0)["refused"] == stranger.take(held=[Q0])["refused"] == [Q0]
    assert holder.take(held=[Q0])["locks"] == number, "it is the same lock"
    made.remap(A, queues=[0])
    assert holder.release(Q0, locks=number) == [Q0]


def test_order_08_the_attempts_of_a_message_in_an_old_segment_are_kept(made: StaticTopic) -> None:
    client = member(made, "c0")
    client.beat()
    client.take(Q0)
    client.commit(Q0, 1, attempts={Q0: 3})
    made.remap(B, queues=[0])
    assert client.take(held=[Q0])["attempts"] == {Q0: 3}
    assert client.take(Q0)["attempts"] == {Q0: 4}, "it went without a release: the message counts as tried"


def test_pop_18_a_reset_voids_the_lock_of_a_queue(made: StaticTopic) -> None:
    client = member(made, "c0")
    client.beat()
    client.take(Q0)
    client.commit(Q0, 2)
    reset(made.api, made.name, made.name, {Q0: 1})
    assert client.fetch(Q0).json["code"] == "not_lock_holder"
    assert client.take(Q0)["offsets"] == {Q0: 1}


@pytest.mark.parametrize(("start", "offset"), [("first", 0), ("last", 4)])
def test_cons_02_a_group_begins_in_a_queue_by_its_settings(api: Api, topic: str, start: str, offset: int) -> None:
    exclusive_group(api, topic, consume_from=start)
    made = StaticTopic(api, topic).put(1, A)
    made.send(0, "a0", "a1", "a2")
    made.remap(B)
    made.send(0, "b0")
    client = member(made, "c0")
    client.beat()
    assert client.take(Q0)["offsets"] == {Q0: offset}
    made.remap(A)
    made.send(0, "c0")
    assert client.take(Q0)["offsets"] == {Q0: offset}, "it is stored: what came since is not passed over"


def test_static_13_a_waiting_pull_goes_on_when_its_queue_moves(made: StaticTopic) -> None:
    client = member(made, "c0")
    client.beat()
    client.take(Q0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.fetch, Q0, "&offset=3&wait_ms=20000")
        found = made.api.service.topics.find(made.name)
        assert found is not None
        partition = found.partition(made.queue().leader.partition)
        until(lambda: partition._waiters)
        made.remap(B, queues=[0])
        made.send(0, "b0")
        assert bodies(waiting.result(10).json) == ["b0"]


@pytest.mark.promise("GROUP-2")
def test_cons_02_the_start_of_a_queue_at_its_end_is_durable_with_its_lock(tmp_path: Path) -> None:
    # What is not stored before the answer is not stored by the crash.
    with queue_in(tmp_path, static=True, commit_every_ms=60_000) as queue:
        (partition,) = queue.topic(1)
        exclusive_group(queue.api, "late", consume_from="last")
        queue.send("a", "b")
        for _ in range(2):
            client = Member(queue.api, "late", "orders", "c0")
            client.beat()
            assert client.take(partition)["offsets"] == {partition: 2}
            queue.send("c")
            queue.crash()


# Two processes --------------------------------------------------------------------------------------------------------


@dataclass
class Two:
    """Two processes of one warehouse with an exclusive group `billing`; the second can be ended."""

    one: Api
    other: Api
    made: StaticTopic
    second_life: ExitStack
    #: By which the first one tells leases and locks.
    clock: SetClock

    def see(self) -> None:
        """Let both know the same segments."""
        for api in (self.one, self.other):
            on_loop(api, api.service.meta.refresh())


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    """The queue is on broker-b, which the second process serves; the first has broker-a and the meta role."""
    with ExitStack() as first_life, ExitStack() as second_life:
        clock = SetClock()
        config = config_for(tmp_path, brokers=(A,), **PATIENT)
        one = first_life.enter_context(running(config, Ports(lease_clock=clock)))
        other = second_life.enter_context(running(config_for(tmp_path, brokers=(B,), **PATIENT)))
        until(lambda: one.service.meta.now.brokers.available == (A, B) and other.service.hosting.hosts(B))
        hold_seals(one, other)
        exclusive_group(one, "billing")
        made = StaticTopic(one, "orders").put(1, B)
        made.send(0, "b0", "b1", "b2")
        found = Two(one, other, made, second_life, clock)
        found.see()
        yield found


def test_order_05_work_in_progress_survives_a_remapping_to_another_process(two: Two) -> None:
    holder = Member(two.other, "billing", "orders", "c0")
    holder.beat()
    before = holder.take(Q0)["locks"]
    assert bodies(holder.fetch(Q0).json) == ["b0", "b1", "b2"]
    assert holder.commit(Q0, 1, locks=before).status == 200
    two.made.begin_remap(A)
    two.see()
    for api in (two.one, two.other):
        assert Member(api, "billing", "orders", "c0").commit(Q0, 2, locks=before).json["code"] == "not_lock_holder"
    claimed = holder.take(held=[Q0])
    assert claimed["offsets"] == {Q0: 1}, "the commit at the other process is known"
    assert holder.commit(Q0, 2, locks=claimed["locks"]).json["offsets"] == {Q0: 2}, "stored by the old one's process"
    two.made.seal()
    two.made.send(0, "a0")
    assert bodies(holder.fetch(Q0, "&offset=2").json) == ["b2"]
    assert holder.commit(Q0, 4, locks=claimed["locks"]).status == 200
    holder.release(Q0)
    assert holder.take(Q0)["offsets"] == {Q0: 4}
    for api in (two.one, two.other):
        view = api.call("GET", "/v1/groups/billing/topics/orders/offsets").json["partitions"][0]
        assert (view["partition"], view["committed_offset"], view["lag"]) == (Q0, 4, 0)


def test_order_03_a_waiting_pull_ends_when_its_queue_moves_to_another_process(two: Two) -> None:
    client = Member(two.other, "billing", "orders", "c0")
    client.beat()
    client.take(Q0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.fetch, Q0, "&offset=3&wait_ms=20000")
        found = two.other.service.topics.find("orders")
        assert found is not None
        partition = found.partition(two.made.queue().leader.partition)
        until(lambda: partition._waiters)
        two.made.remap(A)
        assert waiting.result(10).json["code"] == "not_owner", "asked again, it is sent to the other process"
    assert client.fetch(Q0).json["code"] == "not_lock_holder"
    client.take(held=[Q0])
    assert bodies(client.fetch(Q0).json) == ["b0", "b1", "b2"]


def test_order_05_the_next_owner_waits_for_who_holds_the_queue_elsewhere(two: Two) -> None:
    old, new = Member(two.other, "billing", "orders", "c0"), Member(two.other, "billing", "orders", "c1")
    old.beat()
    old.take(Q0)
    new.beat()
    two.made.remap(A)
    two.see()
    old.leave()
    assert new.allocated() == [Q0]
    assert new.take(Q0)["refused"] == [Q0], "the other may be at work"
    claimed = old.take(held=[Q0])["locks"]
    assert old.commit(Q0, 2, locks=claimed).status == 200
    assert old.release(Q0, locks=claimed) == [Q0]
    assert new.take(Q0)["offsets"] == {Q0: 2}, "no message is heard by both"


@pytest.mark.parametrize("start", ["first", "last"])
def test_cons_02_taking_the_lock_of_a_queue_is_no_consumption_at_any_process(two: Two, start: str) -> None:
    two.made.remap(A)
    two.made.send(0, "a0")
    exclusive_group(two.one, "billing", consume_from=start)
    client = Member(two.one, "billing", "orders", "c0")
    client.beat()
    offset = 0 if start == "first" else 4
    assert client.take(Q0)["offsets"] == {Q0: offset}
    for api in (two.one, two.other):
        view = api.call("GET", "/v1/groups/billing/topics/orders/offsets").json["partitions"][0]
        assert (view["committed_offset"], view["last_consume_time"]) == (offset, None)


def test_order_05_a_lock_that_is_handed_over_while_its_queue_moves_is_free_at_once(two: Two) -> None:
    """The process that the queue came from knows that nobody has the lock, or the release concerns its lock."""
    old, new = Member(two.one, "billing", "orders", "c0"), Member(two.one, "billing", "orders", "c1")
    old.beat()
    numbers = old.take(Q0)["locks"]
    assert old.commit(Q0, 2, locks=numbers).status == 200
    new.beat()
    old.leave()
    two.made.remap(A)
    assert old.release(Q0, locks=numbers) == [Q0], "at the new one, which has asked for it"
    assert new.take(Q0)["offsets"] == {Q0: 2}


def test_order_05_a_lock_that_was_released_before_its_queue_moved_is_free_at_once(two: Two) -> None:
    old, new = Member(two.one, "billing", "orders", "c0"), Member(two.one, "billing", "orders", "c1")
    old.beat()
    old.take(Q0)
    new.beat()
    old.leave()
    assert old.release(Q0) == [Q0]
    two.made.remap(A)
    assert new.take(Q0)["offsets"] == {Q0: 0}


def test_order_05_a_release_wakes_the_next_owner_at_the_new_process(two: Two) -> None:
    old, new = Member(two.one, "billing", "orders", "c0"), Member(two.one, "billing", "orders", "c1")
    old.beat()
    numbers = old.take(Q0)["locks"]
    new.beat()
    old.leave()
    two.made.remap(A)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(new.take, Q0, wait_ms=20_000)
        until(lambda: two.one.service.locks.waiting == 1)
        assert old.release(Q0, locks=numbers) == [Q0]
        assert waiting.result(20)["offsets"] == {Q0: 0}


def test_order_05_who_holds_the_queue_elsewhere_and_is_silent_has_it_for_26_s(two: Two) -> None:
    old, new = Member(two.one, "billing", "orders", "c0"), Member(two.one, "billing", "orders", "c1")
    old.beat()
    old.take(Q0)
    new.beat()
    two.made.remap(A)
    old.leave()
    assert new.take(Q0)["refused"] == [Q0], "the other process has said that it has the lock"
    pass_ms(two, PULL_LOCK_SETTLE_MS - 1)
    assert new.take(Q0)["refused"] == [Q0]
    pass_ms(two, 1)
    assert new.take(Q0)["offsets"] == {Q0: 0}
    assert old.take(held=[Q0])["refused"] == [Q0], "it came too late"


def test_order_05_a_lock_is_told_of_only_by_a_broker_that_led_the_queue(two: Two) -> None:
    holder = Member(two.one, "billing", "orders", "c0")
    holder.beat()
    number = holder.take(Q0)["locks"][Q0]

    def told(topic: str = "orders", partition: str = Q0, broker: str = B) -> Reply:
        query = f"partition={quote(partition)}&broker={quote(broker)}"
        return two.one.call("GET", f"/v1/groups/billing/topics/{topic}/locks?{query}")

    assert (told().status, told().json["code"]) == (409, "queue_not_moved"), "it changes while the broker leads"
    two.made.remap(A)
    found = told().json
    assert (found["holder"]["client"], found["holder"]["number"]) == ("c0", number) and found["settles_in_ms"] > 0
    assert found["holder"]["renewed_ms_ago"] >= 0 and not (found["void"] or found["abandoned"])
    assert told(broker=A).json["code"] == "queue_not_moved"
    assert told(broker="elsewhere").status == 503
    assert told(broker="no broker").json["field"] == "broker"
    assert told(partition="9@__logical_queue_broker__").status == 404
    two.one.put_topic("plain")
    assert told("plain", "plain@broker-a").json["field"] == "topic"


@contextmanager
def silent(api: Api) -> Iterator[None]:
    """Let a process do nothing, as one that is stopped."""
    goes_on = threading.Event()
    api.service.loop.call_soon_threadsafe(goes_on.wait)
    try:
        yield
    finally:
        goes_on.set()


def pass_ms(two: Two, ms: int) -> None:
    """Let time pass for the first process, which renews its lease meanwhile."""
    step_ms = PATIENT["lease_ms"] // 2
    for passed in range(0, ms, step_ms):
        two.clock.advance_ms(min(step_ms, ms - passed))
        hosting = two.one.service.hosting
        until(lambda: hosting.lease.until_ms - two.clock.boot_ms() > step_ms)  # noqa: B023


def test_order_05_if_the_other_process_is_silent_a_queue_is_free_when_nobody_claimed_it(two: Two) -> None:
    old, new = Member(two.one, "billing", "orders", "c0"), Member(two.one, "billing", "orders", "c1")
    old.beat()
    old.take(Q0)
    new.beat()
    two.made.remap(A)
    two.see()
    old.leave()
    with silent(two.other):
        assert new.take(Q0)["refused"] == [Q0], "the other process may not know of the remapping"
        pass_ms(two, LEASE_RENEW_MS)
        # From when its question is seen stored, its lease can end: a clock that jumps in between would delay that.
        until(lambda: two.one.service.hosting._life.watch.asked_since(two.clock.boot_ms()))
        pass_ms(two, PULL_LOCK_SETTLE_MS + PATIENT["lease_ms"] - LEASE_RENEW_MS - 1)
        assert new.take(Q0)["refused"] == [Q0]
        pass_ms(two, 1)
        # The silent process is asked once more for a second, in which the lease of this one may have to be renewed.
        until(lambda: new.take(Q0)["offsets"] == {Q0: 0})
        assert old.take(held=[Q0])["refused"] == [Q0], "it came too late"


def test_meta_01_a_takeover_during_a_remapping_loses_no_progress(two: Two) -> None:
    holder = Member(two.one, "billing", "orders", "c0")
    holder.beat()
    assert holder.commit(Q0, 2, locks=holder.take(Q0)["locks"]).status == 200
    two.made.begin_remap(A)
    two.second_life.close()
    until(lambda: two.one.service.hosting.hosts(B))
    claimed = holder.take(held=[Q0])
    assert claimed["offsets"] == {Q0: 2}
    two.made.send(0, "b3")
    two.made.seal()
    two.made.send(0, "a0")
    assert bodies(holder.fetch(Q0, "&offset=2").json) == ["b2", "b3"]
    assert bodies(holder.fetch(Q0, "&offset=4").json) == ["a0"]
    assert holder.commit(Q0, 5, locks=claimed["locks"]).json["offsets"] == {Q0: 5}
