"""Pops of static topics: logical queues in, logical offsets out, whatever was remapped when (SPEC STATIC-20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.queue.lane_pops import LanePops
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.mq.meta.static_topics import RemapMode
from tests.api.queue_calls import Consumer, Queue, queue_in
from tests.api.running import until
from tests.api.static_pops import Static, queue_name

A, B = "broker-a", "broker-b"
MODES: list[RemapMode] = ["strict", "available"]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse") as found:
        yield found


@pytest.fixture
def static(queue: Queue) -> Static:
    """One logical queue, on broker-a."""
    return Static(queue.api).put(1, (A,))


def shown(messages: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(message["partition"], message["offset"], message["body"]) for message in messages]


# What a pop brings ----------------------------------------------------------------------------------------------------


def test_static_02_a_pop_shows_logical_queues_and_offsets(queue: Queue, static: Static) -> None:
    static.send(0, "a", "b")
    static.remap(B)
    static.send(0, "c")
    static.remap(A, mode="available")
    static.send(0, "d", "e")
    billing = queue.consumer("billing")
    found = billing.pop_all()
    name = queue_name(0)
    assert sorted(shown(found)) == [
        (name, 0, "a"),
        (name, 1, "b"),
        (name, 2, "c"),
        (name, 10_000, "d"),
        (name, 10_001, "e"),
    ]
    assert billing.ack([message["handle"] for message in found]) == {}
    assert billing.pop_all() == []


def test_static_02_arrow_pops_show_the_same(queue: Queue, static: Static) -> None:
    static.send(0, "a")
    static.remap(B, mode="available")
    static.send(0, *map(str, range(40)))
    billing = queue.consumer("billing")
    table = billing.pop_arrow(100).table
    assert set(table.column("partition").to_pylist()) == {queue_name(0)}
    assert sorted(table.column("offset").to_pylist()) == [0, *range(10_000, 10_040)]
    assert billing.ack(table.column("handle").to_pylist()) == {}


@pytest.mark.parametrize("mode", MODES)
def test_static_20_a_pop_of_a_queue_takes_its_segments_oldest_first(
    queue: Queue, static: Static, mode: RemapMode
) -> None:
    static.put(2)
    bodies = []
    for number, broker in enumerate((B, A, B, A)):
        static.send(0, f"0:{number}")
        static.send(1, f"1:{number}")
        bodies.append(f"0:{number}")
        static.remap(broker, mode=mode, queues=[0])
    billing = queue.consumer("billing")
    found = billing.pop(3, partition=queue_name(0))
    assert found.bodies == bodies[:3] and found.rest == 1
    offsets = [message["offset"] for message in found.messages]
    assert offsets == sorted(set(offsets))
    assert billing.pop(partition=queue_name(0)).bodies == bodies[3:]
    assert billing.pop(partition=queue_name(0)).bodies == []
    assert sorted(billing.pop(partition=queue_name(1)).bodies) == [f"1:{number}" for number in range(4)]


def test_static_22_pops_of_physical_partitions_and_of_unknown_queues_are_refused(queue: Queue, static: Static) -> None:
    static.remap(B)
    billing = queue.consumer("billing")
    for name, status, code in [
        ("orders@broker-a", 422, "physical_partition"),
        ("orders#1@broker-b", 422, "physical_partition"),
        (queue_name(1), 404, "partition_not_found"),
        ("nonsense@broker-a", 404, "partition_not_found"),
    ]:
        refused = billing.ask(partition=name)
        assert (refused.status, refused.json["code"], refused.json["field"]) == (status, code, "partition")


# During a remapping ---------------------------------------------------------------------------------------------------


def test_static_10_what_an_undecided_leader_has_is_not_popped_before_the_seal(queue: Queue, static: Static) -> None:
    static.send(0, "old")
    static.remap(B, mode="available", seal=False)
    static.send(0, "new")
    billing = queue.consumer("billing")
    assert [message["body"] for message in billing.pop_all()] == ["old"]
    assert billing.pop(partition=queue_name(0)).bodies == []
    static.seal()
    assert shown(billing.pop(partition=queue_name(0)).messages) == [(queue_name(0), 10_000, "new")]


def test_static_08_between_the_steps_of_a_strict_remapping_messages_come_from_the_old_leader(
    queue: Queue, static: Static
) -> None:
    static.send(0, "1")
    static.remap(B, seal=False)
    static.send(0, "2")
    billing = queue.consumer("billing")
    assert billing.pop(partition=queue_name(0)).bodies == ["1", "2"]
    static.seal()
    static.send(0, "3")
    assert shown(billing.pop(partition=queue_name(0)).messages) == [(queue_name(0), 2, "3")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("partition", [None, queue_name(0)])
def test_static_20_a_waiting_pop_is_woken_by_what_comes_to_a_new_leader(
    queue: Queue, static: Static, mode: RemapMode, partition: str | None
) -> None:
    billing = queue.consumer("billing")
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(billing.pop, wait_ms=20_000, partition=partition)
        until(lambda: queue.api.service.lanes.waiting)
        static.remap(B, mode=mode)
        static.send(0, "new")
        assert waiting.result(10).bodies == ["new"]


def test_static_20_a_seal_wakes_the_pops_that_wait_for_it(queue: Queue, static: Static) -> None:
    static.remap(B, mode="available", seal=False)
    static.send(0, "new")
    billing = queue.consumer("billing")
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(billing.pop, wait_ms=20_000)
        until(lambda: queue.api.service.lanes.waiting)
        static.seal()
        assert waiting.result(10).bodies == ["new"]


# Order ----------------------------------------------------------------------------------------------------------------


def in_order(queue: Queue, strict: bool, order: bool | str) -> tuple[Static, Consumer]:
    static = Static(queue.api).put(1, (A,), strict=strict)
    return static, queue.group("billing", order=order)


ORDERS = [(False, True), (False, "key"), (True, True), (True, "key"), (True, False)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("strict", "order"), ORDERS)
def test_static_20_in_order_a_segment_gives_messages_when_those_before_it_are_consumed(
    queue: Queue, mode: RemapMode, strict: bool, order: bool | str
) -> None:
    static, billing = in_order(queue, strict, order)
    static.send(0, "1", "2", key="k")
    static.send(0, "free")
    static.remap(B, mode=mode)
    static.remap(A, mode=mode)  # an empty segment between them
    static.send(0, "3", key="k")
    static.send(0, "4")
    first = billing.pop(1)
    bodies = first.bodies
    assert bodies == ["1"]
    for partition in (None, queue_name(0)):
        found = billing.pop(partition=partition)
        assert not {"3", "4"} & set(found.bodies), "the first segment is not consumed"
        assert billing.ack(found.handles) == {}
        bodies += found.bodies
    assert bodies == {True: ["1"], "key": ["1", "free"], False: ["1", "2", "free"]}[order]
    assert billing.ack(first.handles) == {}
    while len(bodies) < 5:
        found = billing.pop(1, wait_ms=1_000)
        assert found.messages and billing.ack(found.handles) == {}
        bodies += found.bodies
    assert bodies[-2:] == ["3", "4"] and sorted(bodies) == ["1", "2", "3", "4", "free"]


@pytest.mark.parametrize("mode", MODES)
def test_static_20_keys_keep_their_order_across_remappings(queue: Queue, mode: RemapMode) -> None:
    static, billing = in_order(queue, False, "key")
    keys = ["a", "b", "c"]
    for number, broker in enumerate((B, A, B)):
        for key in keys:
            static.send(0, f"{key}{number}", key=key)
        static.remap(broker, mode=mode)
    got: dict[str, list[str]] = {key: [] for key in keys}
    while sum(map(len, got.values())) < 9:
        found = billing.pop(2, wait_ms=2_000)
        assert found.messages
        for message in found.messages:
            got[message["key"]].append(message["body"])
        assert billing.ack(found.handles) == {}
    assert got == {key: [f"{key}{number}" for number in range(3)] for key in keys}


def test_static_20_in_order_what_is_filtered_out_lets_the_next_segment_pass(queue: Queue) -> None:
    static, billing = in_order(queue, False, True)
    static.send(0, "1", tag="T")
    static.send(0, "no", "no", tag="U")
    static.remap(B)
    static.send(0, "no", tag="U")
    static.remap(A)
    static.send(0, "2", tag="T")
    first = billing.pop(tags="T")
    assert first.bodies == ["1"] and billing.pop(tags="T").bodies == []
    assert billing.ack(first.handles) == {}
    assert billing.pop(tags="T").bodies == ["2"], "in one call, over two segments"


def test_static_20_an_unordered_pop_takes_from_all_segments_at_once(queue: Queue, static: Static) -> None:
    static.send(0, "1")
    static.remap(B)
    static.send(0, "2")
    assert sorted(queue.consumer("billing").pop().bodies) == ["1", "2"]


def test_static_20_messages_of_an_order_that_come_again_hold_the_next_segment(queue: Queue) -> None:
    static, billing = in_order(queue, False, True)
    static.send(0, "1")
    static.remap(B)
    static.send(0, "2")
    assert billing.pop(invisible_ms=10_000).bodies == ["1"]
    queue.advance(11_000)
    again = billing.pop()
    assert (again.bodies, again.attempts) == (["1"], [2])
    assert billing.nack(again.handles, delay_ms=0) == {}
    again = billing.pop()
    assert (again.bodies, again.attempts) == (["1"], [3])
    assert billing.dead(again.handles) == {}
    assert shown(billing.pop().messages) == [(queue_name(0), 1, "2")]


# Long chains ----------------------------------------------------------------------------------------------------------


def test_static_20_closed_segments_that_a_group_is_done_with_are_not_visited_again(
    queue: Queue, static: Static, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing = queue.consumer("billing")
    for number in range(12):
        static.send(0, str(number))
        found = billing.pop()
        assert found.bodies == [str(number)] and billing.ack(found.handles) == {}
        static.remap(B if number % 2 == 0 else A)
    static.send(0, "last")
    visited: list[str] = []
    pop = LanePops.pop

    async def noted(pops: LanePops, request: Any) -> Any:
        visited.append(request.lane.partition)
        return await pop(pops, request)

    monkeypatch.setattr(LanePops, "pop", noted)
    found = billing.pop()
    assert found.bodies == ["last"]
    assert [name for name in visited if not name.startswith("%RETRY%")] == [static.queue().leader.partition]


@pytest.mark.parametrize("order", [True, "key"])
def test_static_20_a_chain_asks_for_progress_once_for_each_segment(
    queue: Queue, order: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    static, billing = in_order(queue, False, order)
    asked: list[str] = []
    committed = MovedProgress.committed

    async def noted(moved: MovedProgress, lane: Any, since_s: float = 0.0) -> Any:
        asked.append(lane.partition)
        return await committed(moved, lane, since_s)

    monkeypatch.setattr(MovedProgress, "committed", noted)
    for number in range(12):
        static.send(0, str(number), key="k")
        static.remap(B if number % 2 == 0 else A)
    for number in range(12):
        found = billing.pop()
        assert found.bodies == [str(number)] and billing.ack(found.handles) == {}
    assert len(asked) <= 12 + 2


# Retries, dead letters ------------------------------------------------------------------------------------------------


def test_static_20_messages_popped_from_a_closed_segment_are_revived_with_a_logical_origin(
    queue: Queue, static: Static
) -> None:
    static.remap(B, mode="available")
    static.send(0, "a", "b")
    billing = queue.consumer("billing")
    found = billing.pop(invisible_ms=20_000)
    static.remap(A)
    assert billing.ack(found.handles[:1]) == {}
    queue.advance(21_000)
    queue.revive()
    again = billing.pop_again(1, partition=queue_name(0))
    assert again.bodies == ["b"] and again.attempts == [2]
    assert again.messages[0]["origin"] == {"topic": "orders", "partition": queue_name(0), "offset": 10_001}
    (row,) = queue.retries("billing")
    assert (row["origin"]["partition"], row["origin"]["offset"]) == ("orders#1@broker-b", 1), "stored as it was"
    assert billing.ack(again.handles) == {}


def test_static_20_arrow_pops_show_logical_origins(queue: Queue, static: Static) -> None:
    static.remap(B, mode="available")
    static.send(0, "a")
    billing = queue.consumer("billing")
    billing.pop(invisible_ms=20_000)
    queue.advance(21_000)
    queue.revive()
    until(lambda: billing.pop(retry="only", max_messages=1, invisible_ms=10_000).messages)
    queue.advance(11_000)
    queue.revive()
    found: list[Any] = []

    def come() -> bool:
        found[:] = billing.pop_arrow(retry="only").table.to_pylist()
        return bool(found)

    until(come)
    assert found[0]["origin"] == {"topic": "orders", "partition": queue_name(0), "offset": 10_000}


def letters(queue: Queue) -> list[dict[str, Any]]:
    listed = queue.api.call("GET", "/v1/groups/billing/dead-letters").json
    found: list[dict[str, Any]] = listed["messages"]
    return found


def places(queue: Queue) -> dict[str, list[int]]:
    """All dead letters by name, so that those sent back are sent again."""
    return {letter["partition"]: [letter["offset"]] for letter in letters(queue)}


def replay(queue: Queue, **ask: object) -> dict[str, Any]:
    reply = queue.api.call("POST", "/v1/groups/billing/dead-letters/replay", ask)
    assert reply.status == 200, reply
    return dict(json.loads(reply.body))


def buried(queue: Queue, static: Static) -> Consumer:
    """A group with one dead letter, from the second segment of queue 0."""
    static.send(0, "first")
    static.remap(B, mode="available")
    static.send(0, "bad")
    billing = queue.group("billing", order=True)
    for body in ("first", "bad"):
        found = billing.pop()
        assert found.bodies == [body]
        assert (billing.ack if body == "first" else billing.dead)(found.handles) == {}
    return billing


def test_static_18_a_dead_letter_tells_its_logical_origin(queue: Queue, static: Static) -> None:
    buried(queue, static)
    (letter,) = letters(queue)
    assert letter["origin"] == {"topic": "orders", "partition": queue_name(0), "offset": 10_000}
    (row,) = queue.dead_letters("billing")
    assert row["origin"]["partition"] == "orders#1@broker-b"


@pytest.mark.parametrize("mode", MODES)
def test_static_20_a_replay_goes_to_the_leader_of_now_once(queue: Queue, static: Static, mode: RemapMode) -> None:
    billing = buried(queue, static)
    static.remap(A, mode=mode)
    assert replay(queue)["replayed"] == 1
    assert shown(billing.pop().messages) == [(queue_name(0), 10_001 if mode == "strict" else 20_000, "bad")]
    for broker in (B, A):
        static.remap(broker, mode=mode)
        again = replay(queue, offsets=places(queue))
        assert (again["replayed"], again["duplicates"]) == (0, 1), "an earlier segment has it"


def test_static_20_a_replay_during_an_available_remapping_seals_it_first(queue: Queue, static: Static) -> None:
    buried(queue, static)
    assert replay(queue)["replayed"] == 1
    static.remap(A, mode="available", seal=False)
    again = replay(queue, offsets=places(queue))
    assert (again["replayed"], again["duplicates"]) == (0, 1)
    assert not queue.api.service.meta.now.moved_keys(static.topic.id).waiting


# Beginnings, resets, restarts -----------------------------------------------------------------------------------------


def test_pop_07_a_group_that_begins_last_gets_the_last_message_of_the_queue_alone(queue: Queue, static: Static) -> None:
    static.send(0, "1", "2")
    static.remap(B)
    static.send(0, "3", "4")
    static.remap(A)
    assert [m["body"] for m in queue.group("before", consume_from="last").pop_all()] == ["4"]
    static.send(0, "5", "6")
    late = queue.group("late", consume_from="last")
    assert [m["body"] for m in late.pop_all()] == ["6"]
    static.remap(B)
    static.send(0, "7")
    assert [m["body"] for m in late.pop_all()] == ["7"]


@pytest.mark.parametrize("order", [False, True])
def test_pop_18_a_reset_gives_all_segments_again(queue: Queue, order: bool) -> None:
    static, billing = in_order(queue, False, order)
    for broker in (B, A, B):
        static.send(0, broker)
        static.remap(broker)

    def all_of_them() -> list[str]:
        bodies: list[str] = []
        while found := billing.pop(1).messages:
            bodies.append(found[0]["body"])
            assert billing.ack([found[0]["handle"]]) == {}
        return bodies

    assert sorted(all_of_them()) == [A, B, B]
    reply = queue.api.call("POST", "/v1/groups/billing/topics/orders/offsets/reset", {"to": "first"})
    assert reply.status == 200, reply
    again = all_of_them()
    assert sorted(again) == [A, B, B] and (not order or again == [B, A, B])


@pytest.mark.parametrize("order", [False, True, "key"])
def test_pop_14_a_crash_after_a_remapping_loses_nothing_of_closed_segments(queue: Queue, order: bool | str) -> None:
    static, billing = in_order(queue, False, order)
    static.send(0, "1", "2", key="k")
    held = billing.pop(1, invisible_ms=60_000)
    static.remap(B)
    static.send(0, "3", key="k")
    queue.crash()
    static, billing = Static(queue.api), queue.consumer("billing")
    got = set()
    if order is False:
        got = {message["body"] for message in billing.pop_all()}
        assert got == {"1", "2", "3"}, "only memory knew what was given away"
        return
    assert held.bodies == ["1"] and billing.ack(held.handles) == {}
    for expected in ("2", "3"):
        found = billing.pop(wait_ms=1_000)
        assert found.bodies == [expected] and billing.ack(found.handles) == {}


# Failed messages of exclusive clients ---------------------------------------------------------------------------------


def test_static_18_a_client_sends_messages_back_by_logical_offsets(queue: Queue, static: Static) -> None:
    """Of several segments, wherever they are, each once; what does not exist is refused as a whole."""
    static.send(0, "0", "1")
    static.remap(B, mode="available")
    static.send(0, "2", "3")
    queue.group("billing", consume_strategy="exclusive")
    service = queue.api.service
    locked: list[str] = []
    service.locks.check_commit = lambda group, topic, lane, *_: locked.append(lane.partition)  # type: ignore[method-assign]

    def aside(*offsets: int, to: str = "dead", partition: str = queue_name(0)) -> Any:
        ask = {"client_id": "c", "partition": partition, "offsets": list(offsets), "to": to}
        return queue.api.call("POST", "/v1/groups/billing/topics/orders/aside", ask)

    for beyond in (10_002, 2, 9_999):
        refused = aside(0, beyond)
        assert (refused.status, refused.json["code"]) == (422, "offset_out_of_range"), refused
        assert "broker-a" not in refused.json["detail"]
    assert aside(0, partition="orders@broker-a").json["code"] == "physical_partition"
    assert letters(queue) == []
    for _ in range(2):
        assert aside(1, 10_001).json == {"moved": 2}
    static.remap(A)
    assert aside(1).json == {"moved": 1} and set(locked) == {queue_name(0)}
    found = [(letter["body"], letter["origin"]["partition"], letter["origin"]["offset"]) for letter in letters(queue)]
    assert found == [("1", queue_name(0), 1), ("3", queue_name(0), 10_001)]
    assert aside(10_000, to="retry").json == {"moved": 1}
    again = queue.consumer("billing").pop(retry="only", wait_ms=10_000)
    assert again.messages[0]["origin"] == {"topic": "orders", "partition": queue_name(0), "offset": 10_000}
