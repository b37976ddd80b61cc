"""Reading by offset: turns, places, tags, lost data, a service that comes and goes (CONS-2, CONS-3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.pull.blocking_fetches import FetchConnection
from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.pull.partition_reader import OffsetOutOfRange
from deltamq.mq.errors import NotFound, Refused, Unavailable
from deltamq.mq.limits import FETCH_MESSAGES_MAX
from tests.unit.client.on_loop import InShell
from tests.unit.client.stub_service import StubService

MakeConsumer = Callable[..., PullConsumer]
QUICK = Patience(first_wait_ms=1, wait_ms_max=5, timeout_s=5, request_timeout_s=2)


@pytest.fixture
def make_consumer(stub: StubService, in_shell: InShell) -> Iterator[MakeConsumer]:
    made: list[PullConsumer] = []

    def make(topic: str = "orders", **settings: Any) -> PullConsumer:
        made.append(in_shell(PullConsumer, stub.url, topic, **{"patience": QUICK, **settings}))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def fill(producer: Producer, count: int, *, start: int = 0, tag: Callable[[int], str] | None = None) -> None:
    messages = [Message(str(n).encode(), key=f"k{n}", tag=tag(n) if tag else None) for n in range(start, start + count)]
    producer.send_batch("orders", messages)


def drain(consumer: PullConsumer, max_messages: int = 500) -> list[int]:
    """The bodies of everything that is there."""
    found: list[int] = []
    while messages := consumer.poll(max_messages, wait_ms=0):
        found += [int(message.body) for message in messages]
    return found


def test_every_message_of_every_partition_is_read_once(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 4)
    fill(producer, 1_000)
    consumer = make_consumer(fetch_messages=37)
    assert sorted(drain(consumer, 11)) == list(range(1_000))
    assert consumer.positions() == consumer.end_offsets()
    assert drain(consumer) == []
    fill(producer, 10, start=1_000)
    assert sorted(drain(consumer)) == list(range(1_000, 1_010))


def test_a_message_carries_what_its_producer_sent(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    before = datetime.now(UTC)
    producer.send("orders", b"\xff\x00", key="k", tag="T", headers={"a": "b"}, message_id="m-1")
    (message,) = make_consumer().poll()
    assert (message.partition, message.offset) == ("orders@broker-a", 0)
    assert (message.body, message.key, message.tag) == (b"\xff\x00", "k", "T")
    assert (message.headers, message.message_id) == ({"a": "b"}, "m-1")
    assert message.born_time is not None
    assert message.append_time is not None
    assert before - timedelta(seconds=1) <= message.born_time <= message.append_time + timedelta(seconds=1)
    producer.send("orders", "text")
    assert make_consumer(start="last").poll(wait_ms=0) == []
    assert make_consumer(start=1).poll()[0].text == "text"


def test_poll_returns_no_more_than_asked_and_goes_on_behind_it(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    fill(producer, 20)
    consumer = make_consumer()
    assert [m.offset for m in consumer.poll(7)] == list(range(7))
    assert consumer.position("orders@broker-a") == 7
    assert [m.offset for m in consumer.poll(100)] == list(range(7, 20))


def test_partitions_take_turns(stub: StubService, producer: Producer, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 4)
    fill(producer, 400)
    consumer = make_consumer()
    consumer.poll(10)
    stub.wait_for(lambda: stub.fetches_answered == 4)
    for _ in range(19):
        assert len(consumer.poll(10)) == 10
    assert sum(consumer.positions().values()) == 200
    ends = consumer.end_offsets()
    assert all(0 < position < ends[partition] for partition, position in consumer.positions().items())


def test_a_poll_waits_for_the_first_message(stub: StubService, producer: Producer, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 3)
    consumer = make_consumer()
    threading.Timer(0.1, producer.send, ("orders", b"x"), {"key": "k"}).start()
    began = time.monotonic()
    (message,) = consumer.poll(wait_ms=60_000)
    assert message.body == b"x"
    assert time.monotonic() - began < 30
    began = time.monotonic()
    assert consumer.poll(wait_ms=100) == []
    assert 0.09 <= time.monotonic() - began < 30


def test_a_poll_without_a_wait_still_looks(stub: StubService, producer: Producer, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 2)
    consumer = make_consumer()
    assert consumer.poll(wait_ms=0) == []
    fill(producer, 10)
    assert len(drain(consumer)) == 10


def test_more_partitions_than_connections_take_turns(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 150)
    consumer = make_consumer()
    partitions = stub.topics["orders"].route.partitions
    for partition in partitions:
        stub.topics["orders"].log(partition).append(
            {"offset": 0, "body": partition.encode(), "append_time": datetime.now(UTC)}
        )
    found: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(found) < 150 and time.monotonic() < deadline:
        found += [message.body for message in consumer.poll(wait_ms=500)]
    assert sorted(found) == sorted(partition.encode() for partition in partitions)


def test_cons_02_where_to_start(stub: StubService, producer: Producer, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 1)
    fill(producer, 10)
    middle = datetime.now(UTC)
    stub.topics["orders"].log("orders@broker-a")[4]["append_time"] = middle + timedelta(hours=1)
    partition = "orders@broker-a"
    for start, position in [
        ("first", 0),
        ("last", 10),
        (3, 3),
        (middle + timedelta(minutes=1), 4),
        (middle + timedelta(days=1), 10),
        ({partition: 6}, 6),
        ({}, 0),
    ]:
        assert make_consumer(start=start).position(partition) == position


def test_cons_02_first_is_the_first_message_that_is_kept(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    fill(producer, 10)
    stub.topics["orders"].min_offsets["orders@broker-a"] = 4
    assert [m.offset for m in make_consumer().poll()] == list(range(4, 10))


@pytest.mark.parametrize("start", [-1, "middle", datetime(2026, 1, 1)])
def test_a_start_that_is_none_is_refused(stub: StubService, make_consumer: MakeConsumer, start: Any) -> None:
    stub.create("orders", 1)
    with pytest.raises(Refused):
        make_consumer(start=start)


def test_cons_03_only_messages_with_a_tag_are_delivered_and_the_others_count_as_consumed(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 2)
    fill(producer, 300, tag=lambda n: "ABC"[n % 3])
    consumer = make_consumer(tags="A || B", fetch_messages=7)
    found: list[int] = []
    while consumer.positions() != consumer.end_offsets():
        found += [int(message.body) for message in consumer.poll(wait_ms=0)]
    assert sorted(found) == [n for n in range(300) if n % 3 != 2]


def test_cons_03_messages_that_nobody_wants_are_passed_over(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    fill(producer, 30, tag=lambda n: "A")
    consumer = make_consumer(tags="B", fetch_messages=7)
    while consumer.positions() != consumer.end_offsets():
        assert consumer.poll(wait_ms=50) == []


def test_cons_09_messages_that_the_filter_is_not_true_for_count_as_consumed(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    fill(producer, 30, tag=lambda n: "ABC"[n % 3])
    consumer = make_consumer(filter="tag IN ('A', 'B') AND NOT tag = 'A'", fetch_messages=7)
    found: list[int] = []
    while consumer.positions() != consumer.end_offsets():
        found += [int(message.body) for message in consumer.poll(wait_ms=0)]
    assert found == list(range(1, 30, 3))


def test_arrow_rows_carry_their_partition(stub: StubService, producer: Producer, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 3)
    fill(producer, 200)
    consumer = make_consumer()
    rows: list[dict[str, Any]] = []
    while (table := consumer.poll_arrow(50, wait_ms=0)) is not None:
        assert 0 < len(table) <= 50
        assert table.column_names[:2] == ["partition", "offset"]
        rows += table.select(["partition", "offset", "body"]).to_pylist()
    assert sorted(int(row["body"]) for row in rows) == list(range(200))
    for row in rows:
        assert stub.topics["orders"].log(row["partition"])[row["offset"]]["body"] == row["body"]


def test_iterating_follows_the_log_until_the_consumer_is_closed(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    fill(producer, 3)
    consumer = make_consumer()
    seen = []
    for message in consumer:
        seen.append(int(message.body))
        if len(seen) == 3:
            fill(producer, 2, start=3)
        if len(seen) == 5:
            consumer.close()
    assert seen == [0, 1, 2, 3, 4]
    with pytest.raises(Refused):
        consumer.poll()


# Places --------------------------------------------------------------------------------------------------------


def test_seek_drops_what_was_fetched_ahead(stub: StubService, producer: Producer, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 1)
    fill(producer, 100)
    consumer = make_consumer(fetch_messages=10)
    partition = "orders@broker-a"
    consumer.poll(5)
    consumer.seek(partition, 50)
    assert [m.offset for m in consumer.poll(3)] == [50, 51, 52]
    consumer.seek(partition, "first")
    assert consumer.poll(1)[0].offset == 0
    consumer.seek(partition, "last")
    assert consumer.poll(wait_ms=0) == []
    consumer.seek(partition, datetime.now(UTC) - timedelta(hours=1))
    assert consumer.poll(1)[0].offset == 0
    with pytest.raises(NotFound):
        consumer.seek("orders@nowhere", 0)


def test_some_partitions_can_be_assigned(stub: StubService, producer: Producer, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 4)
    fill(producer, 100)
    partitions = stub.topics["orders"].route.partitions
    consumer = make_consumer(partitions=[partitions[1]])
    assert consumer.partitions() == (partitions[1],)
    assert sorted(drain(consumer)) == sorted(int(b) for b in stub.bodies("orders", partitions[1]))
    consumer.assign([partitions[2], partitions[3]], start="first")
    assert len(drain(consumer)) == len(stub.bodies("orders", partitions[2]) + stub.bodies("orders", partitions[3]))
    with pytest.raises(NotFound) as caught:
        consumer.assign(["orders@nowhere"])
    assert caught.value.code == "partition_not_found"
    with pytest.raises(NotFound):
        consumer.position(partitions[0])


def test_partitions_of_an_expansion_are_read_from_their_first_message(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 2)
    consumer = make_consumer(partitions_age_s_max=0.01)
    assert consumer.poll(wait_ms=0) == []
    stub.expand("orders", 4)
    for partition in stub.topics["orders"].route.partitions:
        producer.send("orders", b"1", partition=partition)
    found: list[str] = []
    while len(found) < 4:
        found += [message.partition for message in consumer.poll(wait_ms=50)]
    assert sorted(found) == sorted(stub.topics["orders"].route.partitions)


# Trouble -------------------------------------------------------------------------------------------------------


def test_messages_removed_before_they_were_read_are_never_passed_over_in_silence(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    fill(producer, 20)
    consumer = make_consumer(start=3)
    stub.topics["orders"].min_offsets["orders@broker-a"] = 8
    with pytest.raises(OffsetOutOfRange) as caught:
        consumer.poll()
    assert caught.value.code == "offset_too_small"
    assert caught.value.extra == {"partition": "orders@broker-a", "min_offset": 8, "max_offset": 20}
    consumer.seek("orders@broker-a", int(str(caught.value.extra["min_offset"])))
    assert consumer.poll()[0].offset == 8


def test_a_consumer_may_be_told_to_skip_what_is_lost(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    fill(producer, 20)
    stub.topics["orders"].min_offsets["orders@broker-a"] = 8
    consumer = make_consumer(start=3, on_data_loss="skip")
    assert drain(consumer) == list(range(8, 20))
    assert consumer.lost_messages == 5


def test_a_position_beyond_the_end_is_told(stub: StubService, producer: Producer, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 1)
    fill(producer, 5)
    with pytest.raises(OffsetOutOfRange) as caught:
        make_consumer(start=9).poll()
    assert caught.value.code == "offset_too_large"
    consumer = make_consumer(start=9, on_data_loss="skip")
    assert consumer.poll(wait_ms=0) == []
    assert consumer.position("orders@broker-a") == 5


def test_a_service_that_closes_connections_is_asked_again(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 2)
    fill(producer, 100)
    consumer = make_consumer(fetch_messages=10)
    found = [int(message.body) for message in consumer.poll(10)]
    stub.close_connections()
    while len(found) < 100:
        found += [int(message.body) for message in consumer.poll(10)]
        if len(found) == 50:
            stub.close_connections()
    assert sorted(found) == list(range(100))


def test_a_fetch_whose_answer_ends_at_any_byte_is_repeated(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer
) -> None:
    stub.create("orders", 1)
    fill(producer, 10)
    # Before the consumer, which fetches ahead.
    stub.cuts.extend(range(0, 700, 7))
    consumer = make_consumer(patience=Patience(retries=1_000, first_wait_ms=1, wait_ms_max=1))
    found: list[int] = []
    while len(found) < 10:
        found += [message.offset for message in consumer.poll()]
    assert found == list(range(10))
    assert not stub.cuts


def test_a_service_that_stays_away_is_told_after_the_timeout(make_consumer: MakeConsumer) -> None:
    with StubService() as stub:
        stub.create("orders", 1)
        patience = Patience(first_wait_ms=1, wait_ms_max=5, timeout_s=0.3, retries=1_000)
        consumer = PullConsumer(stub.url, "orders", patience=patience)
    began = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        while time.monotonic() < began + 30:
            consumer.poll(wait_ms=20)
    assert caught.value.code == "connect_failed"
    consumer.close()


@pytest.mark.threads
def test_messages_are_returned_although_the_next_fetch_fails_at_once_which_the_next_call_tells(
    stub: StubService, producer: Producer, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.create("orders", 1)
    fill(producer, 5)
    consumer = make_consumer(fetch_messages=5, patience=Patience(retries=0))
    ask, fails = FetchConnection.ask, [False, True]

    async def asked(self: FetchConnection, *args: Any) -> None:
        if fails and fails.pop(0):
            raise Unavailable("no host is there", code="connect_failed")
        await ask(self, *args)

    monkeypatch.setattr(FetchConnection, "ask", asked)
    assert [int(message.body) for message in consumer.poll(5)] == list(range(5))
    with pytest.raises(Unavailable):
        consumer.poll(5)
    fill(producer, 5, start=5)
    assert [int(message.body) for message in consumer.poll(5)] == list(range(5, 10))


def test_a_topic_that_is_gone_is_told(stub: StubService, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 1)
    consumer = make_consumer()
    del stub.topics["orders"]
    with pytest.raises(NotFound) as caught:
        consumer.poll()
    assert caught.value.code == "topic_not_found"
    with pytest.raises(NotFound):
        make_consumer("nowhere")


@pytest.mark.parametrize(
    "settings",
    [{"fetch_messages": 0}, {"fetch_bytes": 0}, {"fetch_messages": 10**9}],
    ids=["no message", "no byte", "too many"],
)
def test_settings_out_of_their_bounds_are_refused(
    stub: StubService, make_consumer: MakeConsumer, settings: dict[str, int]
) -> None:
    stub.create("orders", 1)
    with pytest.raises(Refused):
        make_consumer(**settings)


@pytest.mark.parametrize(
    "settings", [{"fetch_messages": 1}, {"fetch_messages": FETCH_MESSAGES_MAX}, {"fetch_bytes": 1}], ids=str
)
def test_settings_at_their_bounds_are_taken(
    stub: StubService, make_consumer: MakeConsumer, settings: dict[str, int]
) -> None:
    stub.create("orders", 1).log("orders@broker-a").append({"offset": 0, "body": b"0"})
    assert [message.offset for message in make_consumer(**settings).poll()] == [0]


def test_polls_with_bad_arguments_are_refused(stub: StubService, make_consumer: MakeConsumer) -> None:
    stub.create("orders", 1)
    consumer = make_consumer()
    with pytest.raises(Refused):
        consumer.poll(0)
    with pytest.raises(Refused):
        consumer.poll(wait_ms=-1)
