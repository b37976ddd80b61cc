"""Two services on one warehouse, and a static topic whose segments are at both (SPEC STATIC-13 to 16, META-1)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, NamedTuple

import pytest

from deltamq.api.reading.readers import PartitionReader
from tests.api.running import Api, config_for, running, until
from tests.api.static_queues import Q0, Q1, StaticTopic, hold_seals, on_loop

A, B = "broker-a", "broker-b"


class Two(NamedTuple):
    """`a` serves broker-a and the meta role, `b` broker-b."""

    a: Api
    b: Api


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    warehouse = tmp_path_factory.mktemp("two") / "warehouse"
    with (
        running(config_for(warehouse, brokers=(A,))) as a,
        running(config_for(warehouse, brokers=(B,))) as b,
    ):
        until(lambda: a.service.meta.now.brokers.available == (A, B) and b.service.hosting.hosts(B))
        hold_seals(a, b)
        yield Two(a, b)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Two services of which `b` looks at the metadata once a minute, unless something tells it to."""
    warehouse = tmp_path_factory.mktemp("late") / "warehouse"
    lease = {"lease_ms": 600_000, "lease_renew_ms": 120_000}
    with (
        running(config_for(warehouse, brokers=(A,), **lease)) as a,
        running(config_for(warehouse, brokers=(B,), refresh_ms=60_000, **lease)) as b,
    ):
        until(lambda: a.service.meta.now.brokers.available == (A, B) and b.service.hosting.hosts(B))
        hold_seals(a, b)
        yield Two(a, b)


@pytest.fixture
def known_late(late: Two, topic: str) -> StaticTopic:
    return _with_three(late, topic)


@pytest.fixture
def made(two: Two, topic: str) -> StaticTopic:
    return _with_three(two, topic)


def _with_three(pair: Two, topic: str) -> StaticTopic:
    """Return a queue with three messages at broker-a."""
    found = StaticTopic(pair.a, topic).put(1, A)
    found.send(0, "a0", "a1", "a2")
    return found


def offsets(api: Api, topic: str) -> Any:
    reply = api.call("GET", f"/v1/groups/{topic}/topics/{topic}/offsets")
    assert reply.status == 200, reply
    return reply.json


def commit(api: Api, topic: str, wanted: dict[str, int]) -> Any:
    reply = api.call("PUT", f"/v1/groups/{topic}/topics/{topic}/offsets", {"offsets": wanted})
    assert reply.status == 200, reply
    return reply.json["offsets"]


# Reading --------------------------------------------------------------------------------------------------------------


def test_static_13_any_process_reads_all_segments(two: Two, made: StaticTopic) -> None:
    made.remap(B)
    made.send(0, "b0")
    made.remap(A, mode="available")
    made.send(0, "c0")
    expected = [(0, "a0"), (1, "a1"), (2, "a2"), (3, "b0"), (10_000, "c0")]
    assert [made.read_all(api=api) for api in two] == [expected, expected]


@pytest.mark.parametrize(("mode", "first"), [("strict", 3), ("available", 10_000)])
def test_meta_01_what_went_to_a_new_segment_is_read_at_once_by_who_does_not_know_it(
    late: Two, known_late: StaticTopic, mode: str, first: int
) -> None:
    """The other process knows the old segment alone: that its log is closed tells it to look at the metadata."""
    assert known_late.read_all(api=late.b) == [(0, "a0"), (1, "a1"), (2, "a2")]
    known = known_late.queues(late.b)
    known_late.remap(B, mode="strict" if mode == "strict" else "available")
    known_late.send(0, "b0")
    assert known_late.queues(late.b) is known
    for offset in (first, 3):
        found = known_late.fetch(offset, api=late.b)
        assert [(m["offset"], m["body"]) for m in found["messages"]] == [(first, "b0")]


@pytest.mark.parametrize(("mode", "first"), [("strict", 3), ("available", 10_000)])
def test_meta_01_a_reader_that_learns_of_a_new_segment_as_it_reads_the_old_one_reads_on(
    late: Two, known_late: StaticTopic, monkeypatch: pytest.MonkeyPatch, mode: str, first: int
) -> None:
    assert known_late.read_all(api=late.b) == [(0, "a0"), (1, "a1"), (2, "a2")]
    look = PartitionReader.look

    async def told_meanwhile(*arguments: Any) -> Any:
        found = await look(*arguments)
        await late.b.service.meta.refresh()
        return found

    known_late.remap(B, mode="strict" if mode == "strict" else "available")
    known_late.send(0, "b0")
    monkeypatch.setattr(PartitionReader, "look", told_meanwhile)
    found = known_late.fetch(3, api=late.b)
    assert [(m["offset"], m["body"]) for m in found["messages"]] == [(first, "b0")]


@pytest.mark.parametrize(("mode", "first"), [("strict", 3), ("available", 10_000)])
def test_static_13_a_reader_that_waits_elsewhere_follows_a_remapping(
    two: Two, made: StaticTopic, mode: str, first: int
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(made.fetch, 3, 0, "&wait_ms=20000", two.b)
        partition = made.queue().leader.partition
        until(lambda: (found := two.b.service.topics.find(made.name)) and found.partition(partition)._waiters)
        made.remap(B, mode="strict" if mode == "strict" else "available")
        made.send(0, "b0")
        found = waiting.result(20)
    assert [(m["offset"], m["body"]) for m in found["messages"]] == [(first, "b0")]


# Groups ---------------------------------------------------------------------------------------------------------------


def test_static_16_a_commit_reaches_the_lanes_of_both_processes(two: Two, made: StaticTopic) -> None:
    made.remap(B)
    made.send(0, "b0", "b1")
    assert two.a.call("PUT", f"/v1/groups/{made.name}", {}).status == 201
    for at, asked in ((1, two.a), (2, two.b), (4, two.a), (5, two.b)):
        assert commit(asked, made.name, {Q0: at}) == {Q0: at}
        for api in two:
            shown = offsets(api, made.name)
            assert shown["offsets"] == {Q0: at}
            (view,) = shown["partitions"]
            assert (view["partition"], view["min_offset"], view["end_offset"], view["lag"]) == (Q0, 0, 5, 5 - at)


def test_static_20_a_reset_at_any_process_counts_for_both(two: Two, made: StaticTopic) -> None:
    made.remap(B)
    made.send(0, "b0", "b1")
    assert two.a.call("PUT", f"/v1/groups/{made.name}", {}).status == 201
    for api, at in product(two, (4, 1, 3)):
        commit(api, made.name, {Q0: 5})
        path = f"/v1/groups/{made.name}/topics/{made.name}/offsets/reset"
        assert api.call("POST", path, {"to": {Q0: at}}).json["offsets"] == {Q0: at}
        assert [offsets(one, made.name)["offsets"] for one in two] == [{Q0: at}, {Q0: at}]


def test_static_16_progress_survives_a_commit_in_a_queue_whose_remapping_is_not_known_here(
    two: Two, topic: str
) -> None:
    made = StaticTopic(two.a, topic).put(2, A, B)
    assert two.a.call("PUT", f"/v1/groups/{topic}", {}).status == 201
    made.send(0, "x")
    made.send(1, "y", "z")
    on_loop(two.b, two.b.service.meta.refresh())
    made.remap(A, mode="available")
    made.send(1, "after")
    assert commit(two.b, topic, {Q0: 1, Q1: 10_001}) == {Q0: 1, Q1: 10_001}
    assert [offsets(api, topic)["offsets"] for api in two] == [{Q0: 1, Q1: 10_001}] * 2
