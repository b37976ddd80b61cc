"""Pull consumers of static topics: by logical queue, over holes, after queues that move (STATIC-2, 13, 14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.pull.offsets import FileOffsets
from deltamq.mq.errors import Corrupt, NotFound, Unavailable
from tests.unit.client.on_loop import InShell
from tests.unit.client.pop.pop_consumers import QUICK
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_static import StubStatic

MakeConsumer = Callable[..., PullConsumer]

A, B = "broker-a", "broker-b"
FIRST, SECOND = "0@__logical_queue_broker__", "1@__logical_queue_broker__"


@pytest.fixture
def static(stub: StubService) -> StubStatic:
    return stub.create_static(2)


@pytest.fixture
def make_consumer(stub: StubService, in_shell: InShell) -> Iterator[MakeConsumer]:
    made: list[PullConsumer] = []

    def make(**settings: Any) -> PullConsumer:
        made.append(in_shell(PullConsumer, stub.url, "orders", **{"patience": QUICK, **settings}))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def drain(consumer: PullConsumer, max_messages: int = 500) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while messages := consumer.poll(max_messages, wait_ms=0):
        found += [(message.offset, message.text) for message in messages]
    return found


def fill(static: StubStatic, rounds: int = 4, name: str = FIRST) -> list[tuple[int, str]]:
    """Append to a queue and move it, again and again; return its messages with their logical offsets."""
    sent = []
    for turn in range(rounds):
        bodies = [f"{turn}.{n}" for n in range(turn)]  # the first segment stays empty
        offset = static.append(name, [{"body": body.encode()} for body in bodies]) if bodies else 0
        sent += list(enumerate(bodies, start=offset))
        static.remap({"brokers": [(B, A)[turn % 2]], "mode": ("available", "strict")[turn // 2 % 2]})
    return sent


@pytest.mark.parametrize("fetch_messages", [1, 2, 100])
def test_static_13_every_message_is_read_once_over_segments_and_holes(
    static: StubStatic, make_consumer: MakeConsumer, fetch_messages: int
) -> None:
    sent = fill(static)
    assert len({offset for offset, _ in sent}) == len(sent) and sent[-1][0] > 10_000, "there are holes"
    consumer = make_consumer(fetch_messages=fetch_messages)
    assert consumer.partitions() == (FIRST, SECOND)
    found: list[tuple[int, str]] = []
    while consumer.positions() != consumer.end_offsets():
        found += drain(consumer)
    assert found == sent


def test_static_13_a_consumer_that_waits_goes_on_after_a_remapping(
    static: StubStatic, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer(partitions=[FIRST])
    assert drain(consumer) == []
    static.append(FIRST, [{"body": b"1"}])
    static.remap({"brokers": [B], "mode": "available"})
    static.append(FIRST, [{"body": b"2"}])
    found = []
    while len(found) < 2:
        found += drain(consumer)
    assert found == [(0, "1"), (10_000, "2")]


def test_static_15_a_consumer_starts_at_logical_offsets(
    static: StubStatic, make_consumer: MakeConsumer, tmp_path: Path
) -> None:
    sent = fill(static)
    end = make_consumer(start="last").positions()
    assert end[FIRST] > sent[-1][0]
    assert end[SECOND] == 10_000, "it moved without messages, too"
    middle = sent[3][0]
    consumer = make_consumer(start={FIRST: middle}, offsets=FileOffsets(tmp_path / "kept.json"))
    assert consumer.positions() == {FIRST: middle, SECOND: 0}
    assert [message.offset for message in consumer.poll(2)] == [middle, sent[4][0]]
    consumer.commit()
    again = make_consumer(offsets=FileOffsets(tmp_path / "kept.json"))
    assert drain(again) == sent[5:]
    again.seek(FIRST, "first")
    assert drain(again) == sent


def test_static_22_a_physical_partition_is_none_of_the_topic_for_clients(
    static: StubStatic, make_consumer: MakeConsumer
) -> None:
    with pytest.raises(NotFound) as caught:
        make_consumer(partitions=["orders@broker-a"])
    assert f"it has {FIRST}, {SECOND}" in caught.value.detail


def test_static_07_a_queue_that_is_added_is_read_from_its_first_message(
    stub: StubService, static: StubStatic, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer(start="last", partitions_age_s_max=0.0)
    static.put({"total_queues": 3})
    stub.topics["orders"].route = static.route
    third = static.route.partitions[2]
    static.append(third, [{"body": b"1"}])
    while third not in consumer.positions():
        consumer.poll(wait_ms=10)
    assert consumer.position(third) in (0, 1)


@pytest.mark.parametrize("partitions", [None, [FIRST]], ids=["all", "named"])
def test_static_13_a_moved_queue_is_asked_for_at_the_host_of_its_new_leader(
    stub: StubService, static: StubStatic, make_consumer: MakeConsumer, partitions: list[str] | None
) -> None:
    with StubService() as other:
        stub.beside(other)
        consumer = make_consumer(partitions=partitions, partitions_age_s_max=0.0)

        def asked(host: StubService) -> bool:
            return any("/partitions/0%40__logical_queue_broker__/" in path for path in host.gets)

        while not consumer._hosts.are_several:
            consumer.poll(wait_ms=10)
        other.gets.clear()
        consumer.poll(wait_ms=10)
        assert not asked(other)
        static.remap({"brokers": [B], "mode": "strict"})
        while not asked(other):
            consumer.poll(wait_ms=10)


def test_static_22_a_queue_that_cannot_be_had_is_told(static: StubStatic, make_consumer: MakeConsumer) -> None:
    static.append(SECOND, [{"body": b"1"}])
    static.lose_mapping(A)
    with pytest.raises(Unavailable) as caught:
        make_consumer()
    assert caught.value.code == "queue_unserved"
    assert drain(make_consumer(partitions=[SECOND])) == [(0, "1")]


def test_a_damaged_partition_is_told_and_does_not_keep_others_from_being_read(
    stub: StubService, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 2).log("orders@broker-b").append(
        {"offset": 0, "body": b"x", "append_time": datetime.now(UTC) - timedelta(hours=1)}
    )
    stub.damaged.add("orders@broker-a")
    for start in ("first", "last"):
        with pytest.raises(Corrupt):
            make_consumer(start=start)
    assert drain(make_consumer(partitions=["orders@broker-b"])) == [(0, "x")]
    assert make_consumer(start={"orders@broker-a": 0}).positions() == {"orders@broker-a": 0, "orders@broker-b": 0}
