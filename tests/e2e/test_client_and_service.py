"""The SDK and the real service: what goes in comes out, once, in order, where the route says (SEND, CONS)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest

from deltamq import Admin, Message, OrderlyConsumer, Producer, PullConsumer, Verdict
from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.client.pull.offsets import BroadcastOffsets, GroupOffsets
from deltamq.mq.client.pull.partition_reader import OffsetOutOfRange
from deltamq.mq.errors import Conflict, NotFound, OffsetMismatch, Refused, TooLarge
from deltamq.mq.limits import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    TAG_BYTES_MAX,
)
from deltamq.mq.partitioners import logical_partition
from tests.e2e.as_static import create
from tests.e2e.service_process import ServiceProcess


@pytest.fixture(scope="module")
def producer(shared_service: ServiceProcess) -> Iterator[Producer]:
    with Producer(shared_service.url) as producer:
        yield producer


@pytest.fixture(scope="module")
def admin(shared_service: ServiceProcess) -> Iterator[Admin]:
    with Admin(shared_service.url) as admin:
        yield admin


def read_all(url: str, topic: str, **settings: Any) -> list[dict[str, Any]]:
    """Every message of a topic as rows, in offset order by partition."""
    rows: list[dict[str, Any]] = []
    with PullConsumer(url, topic, **settings) as consumer:
        ends = consumer.end_offsets()
        while consumer.positions() != ends:
            for m in consumer.poll(10_000):
                rows.append({"partition": m.partition, "offset": m.offset, "body": m.body, "key": m.key, "tag": m.tag})
    rows.sort(key=lambda row: (row["partition"], row["offset"]))
    return rows


def test_a_topic_from_creation_to_deletion(shared_service: ServiceProcess, admin: Admin, topic: str) -> None:
    created, new = admin.put_topic(topic, partitions=4, order_strategy="strict", flush="async", retention_ms=60_000)
    assert new
    assert (created.order_strategy, created.flush, created.retention_ms) == ("strict", "async", 60_000)
    assert [p.partition for p in created.partitions] == [
        f"{topic}@broker-a",
        f"{topic}@broker-b",
        f"{topic}#1@broker-a",
        f"{topic}#2@broker-b",
    ]
    assert admin.get_topic(topic) == created
    assert topic in admin.list_topics()
    with pytest.raises(Conflict) as caught:
        admin.create_topic(topic, partitions=2)
    assert caught.value.code == "partitions_cannot_shrink"
    assert admin.cluster().warehouse == str(shared_service.warehouse)
    admin.delete_topic(topic)
    with pytest.raises(NotFound):
        admin.get_topic(topic)


def test_every_way_to_send_arrives(
    shared_service: ServiceProcess, producer: Producer, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=3)
    sent = {}
    for n in range(20):
        sent[f"sync {n}"] = producer.send(topic, f"sync {n}", key=f"k{n}", tag="T", headers={"n": str(n)})
    futures = {f"async {n}": producer.send_soon(topic, f"async {n}", key=f"k{n}") for n in range(500)}
    sent |= {body: future.result() for body, future in futures.items()}
    batch = [f"batch {n}" for n in range(300)]
    sent |= dict(zip(batch, producer.send_batch(topic, [Message(b.encode(), key=b) for b in batch]), strict=True))
    rows = [f"arrow {n}" for n in range(5_000)]
    table = pa.table({"body": rows, "key": [f"k{n % 9}" for n in range(5_000)]})
    sent |= dict(zip(rows, producer.send_arrow(topic, table), strict=True))
    keyless = [f"table {n}" for n in range(5_000)]
    sent |= dict(zip(keyless, producer.send_table(topic, pa.table({"body": keyless}), progress=False), strict=True))
    producer.send_oneway(topic, "oneway")
    assert producer.flush()

    found = read_all(shared_service.url, topic)
    places = {str(bytes(row["body"]), "utf-8"): (row["partition"], row["offset"]) for row in found}
    assert len(found) == len(places) == len(sent) + 1
    assert all(places[body] == (place.partition, place.offset) for body, place in sent.items())
    assert "oneway" in places


def test_route_05_the_client_and_the_service_route_alike(producer: Producer, admin: Admin, topic: str) -> None:
    route = {
        (low, high): p.partition
        for p in admin.create_topic(topic, partitions=5).partitions
        for low, high in p.logical_partitions
    }
    assert sorted(low for low, _ in route)[0] == 0
    for key in ("", "a", "N14228", "ключ", "x" * 100):
        known = next(partition for (low, high), partition in route.items() if low <= logical_partition(key) < high)
        assert producer.send(topic, b"by the client", key=key).partition == known
        assert _post_unrouted(producer, topic, key) == known


def _post_unrouted(producer: Producer, topic: str, key: str) -> str:
    """The partition that the service itself chooses for `key`."""
    import msgspec

    from deltamq.mq.client.http.endpoint import Endpoint, path_of
    from deltamq.mq.client.shells.shell import run_now

    endpoint = Endpoint(producer.url)
    body = msgspec.json.encode({"messages": [{"body": "by the service", "key": key}]})
    call = endpoint.call(
        "POST", path_of("topics", topic, "messages"), headers={"Content-Type": "application/json"}, body=body
    )
    answer = run_now(call)
    run_now(endpoint.close())
    return str(msgspec.json.decode(answer.body)["ranges"][0]["partition"])


@pytest.mark.static_too
@pytest.mark.long
def test_order_of_each_key_holds_over_threads_and_ways_to_send(
    shared_service: ServiceProcess, producer: Producer, admin: Admin, topic: str
) -> None:
    create(admin, topic, 4)

    def run(thread: int) -> None:
        for n in range(0, 300, 3):
            producer.send(topic, f"{n}", key=f"k{thread}")
            producer.send_soon(topic, f"{n + 1}", key=f"k{thread}")
            producer.send_batch(topic, [Message(f"{n + 2}".encode(), key=f"k{thread}")])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_key: dict[object, list[int]] = defaultdict(list)
    for row in read_all(shared_service.url, topic):
        by_key[row["key"]].append(int(str(row["body"], "ascii")))
    assert by_key == {f"k{n}": list(range(300)) for n in range(6)}


def test_a_first_send_creates_the_topic_with_the_default_route(
    shared_service: ServiceProcess, producer: Producer, topic: str
) -> None:
    futures = [producer.send_soon(topic, str(n), key=f"k{n % 5}") for n in range(1_000)]
    assert {f.result().partition for f in futures} == {f"{topic}@broker-a", f"{topic}@broker-b"}
    by_key: dict[object, list[int]] = defaultdict(list)
    for row in read_all(shared_service.url, topic):
        by_key[row["key"]].append(int(str(row["body"], "ascii")))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 1_000


def test_send_06_the_clients_limits_are_the_services(producer: Producer, topic: str) -> None:
    producer.send(topic, b"x" * MESSAGE_BYTES_MAX)
    producer.send(
        topic,
        b"",
        key="k" * KEY_BYTES_MAX,
        tag="t" * TAG_BYTES_MAX,
        message_id="i" * MESSAGE_ID_BYTES_MAX,
        headers={f"{n:04}": "v" * (HEADER_BYTES_MAX - 4) for n in range(HEADERS_MAX)},
    )
    with pytest.raises(TooLarge):
        producer.send(topic, b"x" * (MESSAGE_BYTES_MAX + 1))
    big = pa.table({"body": pa.array([b"x" * MESSAGE_BYTES_MAX] * 5, pa.binary())})
    assert producer.send_arrow(topic, big).count == 5
    assert producer.send_batch(topic, [b"y" * MESSAGE_BYTES_MAX] * 5).count == 5


def test_bodies_of_any_bytes_come_back_as_they_were(
    shared_service: ServiceProcess, producer: Producer, topic: str
) -> None:
    bodies = [b"", b"\x00", b"\xff\xfe", bytes(range(256)), "naïve \u2028 \U0001f600".encode(), b'"\\\n']
    for body in bodies:
        producer.send(topic, body, key="k")
    producer.send_batch(topic, [Message(body, key="k") for body in bodies])
    assert [row["body"] for row in read_all(shared_service.url, topic)] == bodies * 2


@pytest.mark.static_too(always=True)
def test_expected_offset_is_compare_and_append(producer: Producer, admin: Admin, topic: str) -> None:
    (partition,) = create(admin, topic, 1)
    assert producer.send(topic, b"0", partition=partition, expected_offset=0).offset == 0
    with pytest.raises(OffsetMismatch) as caught:
        producer.send(topic, b"again", partition=partition, expected_offset=0)
    assert caught.value.extra["end_offset"] == 1
    assert producer.send(topic, b"1", partition=partition, expected_offset=1).offset == 1


@pytest.mark.static_too(always=True)
def test_cons_02_and_03_start_and_tags(
    shared_service: ServiceProcess, producer: Producer, admin: Admin, topic: str
) -> None:
    (partition,) = create(admin, topic, 1)
    producer.send_batch(topic, [Message(str(n).encode(), tag="ABC"[n % 3]) for n in range(100)])
    # Append times have milliseconds.
    threading.Event().wait(0.005)
    middle = datetime.now(UTC)
    threading.Event().wait(0.005)
    producer.send_batch(topic, [Message(str(n).encode(), tag="ABC"[n % 3]) for n in range(100, 110)])
    url = shared_service.url
    assert read_all(url, topic, start=95)[0]["offset"] == 95
    assert [row["offset"] for row in read_all(url, topic, start=middle)] == list(range(100, 110))
    assert read_all(url, topic, start="last") == []
    assert len(read_all(url, topic, start=datetime.now(UTC) + timedelta(hours=1))) == 0
    assert {row["tag"] for row in read_all(url, topic, tags="A || C")} == {"A", "C"}
    assert len(read_all(url, topic, tags="B")) == 37
    assert read_all(url, topic, tags="nobody") == []
    with PullConsumer(url, topic, start=111) as consumer, pytest.raises(OffsetOutOfRange) as caught:
        consumer.poll()
    assert caught.value.extra == {"partition": partition, "min_offset": 0, "max_offset": 110}
    with PullConsumer(url, topic, tags="||") as consumer, pytest.raises(Refused) as refused:
        consumer.poll()
    assert refused.value.code == "invalid_tag_filter"


@pytest.mark.static_too
def test_cons_09_consumers_of_every_kind_take_a_sql_filter(
    shared_service: ServiceProcess, producer: Producer, admin: Admin, topic: str
) -> None:
    create(admin, topic, 1)
    regions = {0: {"region": "eu"}, 1: {"region": "us"}, 2: {}}
    sent = [Message(b"%d" % n, headers={"n": str(n), **regions[n % 3]}) for n in range(99)]
    producer.send_batch(topic, sent)
    url, sql = shared_service.url, "region = 'eu' AND n >= 90"
    wanted = [b"90", b"93", b"96"]
    assert [row["body"] for row in read_all(url, topic, filter=sql)] == wanted
    with PopClient(url, f"g.{topic}") as client:
        assert [message.body for message in client.pop(topic, 99, filter=sql).messages] == wanted
        assert client.pop(topic, 99).messages == [], "passed over is consumed"
    heard: list[bytes] = []

    def listener(message: OrderedMessage) -> Verdict:
        heard.append(message.body)
        if len(heard) == len(wanted):
            consumer.stop()
        return Verdict.SUCCESS

    consumer = OrderlyConsumer(url, f"x.{topic}", topic, listener, filter=sql)
    consumer.run()
    assert heard == wanted
    with PullConsumer(url, topic, filter="region = ") as wrong, pytest.raises(Refused) as refused:
        wrong.poll()
    assert (refused.value.code, refused.value.extra["position"]) == ("invalid_filter", 9)


@pytest.mark.static_too
def test_a_long_poll_ends_with_the_message(
    shared_service: ServiceProcess, producer: Producer, admin: Admin, topic: str
) -> None:
    create(admin, topic, 4)
    with PullConsumer(shared_service.url, topic) as consumer:
        threading.Timer(0.2, producer.send, (topic, b"x")).start()
        began = datetime.now(UTC)
        assert [m.body for m in consumer.poll(wait_ms=60_000)] == [b"x"]
        assert datetime.now(UTC) - began < timedelta(seconds=30)


@pytest.mark.static_too(always=True)
def test_a_deleted_topic_made_anew_is_another_topic(
    shared_service: ServiceProcess, producer: Producer, admin: Admin, topic: str
) -> None:
    create(admin, topic, 4)
    for n in range(10):
        producer.send(topic, b"old", key=f"k{n}")
    admin.delete_topic(topic)
    create(admin, topic, 1)
    sent = [producer.send(topic, str(n), key=f"k{n}") for n in range(10)]
    assert [s.offset for s in sent] == list(range(10))
    assert [row["body"] for row in read_all(shared_service.url, topic)] == [str(n).encode() for n in range(10)]


@pytest.mark.promise("GROUP-4")
@pytest.mark.static_too(always=True)
def test_pop_18_a_pull_consumer_of_a_group_goes_on_where_a_reset_put_the_group(
    shared_service: ServiceProcess, admin: Admin, producer: Producer, topic: str
) -> None:
    (partition,) = create(admin, topic, 1)
    for n in range(10):
        producer.send(topic, str(n))
    url, kept = shared_service.url, GroupOffsets(topic)
    with PullConsumer(url, topic, offsets=kept) as one, PullConsumer(url, topic, offsets=kept) as other:
        for consumer in (one, other):
            assert [m.text for m in consumer.poll(4)] == ["0", "1", "2", "3"]
            assert consumer.commit() == {partition: 4}, "the first makes the group, the second learns of it"
        admin.reset_offsets(topic, topic, {partition: 2})
        for consumer in (one, other):
            assert consumer.poll(1)[0].text == "4", "what it has fetched"
            assert consumer.commit() == {partition: 2}, "not kept: the group was put elsewhere"
        assert admin.group_offsets(topic, topic) == {partition: 2}
        assert [m.text for m in one.poll(3)] == ["2", "3", "4"]
        assert one.commit() == {partition: 5}
        admin.delete_topic(topic)
        create(admin, topic, 1)
        producer.send(topic, "new")
        with pytest.raises(Conflict, match="made again"):
            one.commit()
        assert one.positions() == {partition: 0}, "its offsets were those of another topic of this name"
        assert [m.text for m in one.poll(1)] == ["new"]


@pytest.mark.promise("GROUP-11")
@pytest.mark.parametrize("static", [False, True])
def test_cons_07_each_client_of_a_broadcast_group_hears_everything_at_its_own_pace(
    shared_service: ServiceProcess, admin: Admin, producer: Producer, topic: str, static: bool
) -> None:
    (admin.put_static_topic(topic, 2) if static else admin.create_topic(topic, partitions=2))
    sent = {str(n) for n in range(40)}
    for body in sent:
        producer.send(topic, body)
    heard: dict[str, list[str]] = {"one": [], "two": []}

    def hear(client: str, count: int) -> None:
        offsets = BroadcastOffsets(topic, client)
        with PullConsumer(shared_service.url, topic, offsets=offsets) as consumer:
            heard[client] += [message.text for message in consumer.poll(count)]
            consumer.commit()

    hear("one", 15)
    hear("two", 5)
    lags = {one.client_id: one.lag for one in admin.get_group(topic).members}
    assert lags == {client: 40 - len(bodies) for client, bodies in heard.items()}
    for client in heard:
        while len(heard[client]) < 40:
            hear(client, 40)
        assert sorted(heard[client]) == sorted(sent), "each message once, over several processes of a client"
    assert admin.get_group(topic).lag == 0
    admin.delete_group(f"{topic}@two")
    assert [one.client_id for one in admin.get_group(topic).members] == ["one"]


def test_cons_07_a_group_of_another_kind_is_not_heard_by_broadcast(
    shared_service: ServiceProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic)
    admin.create_group(topic)
    with pytest.raises(Conflict) as caught:
        PullConsumer(shared_service.url, topic, offsets=BroadcastOffsets(topic, "one"))
    assert caught.value.code == "group_not_broadcast"
    with pytest.raises(Refused):
        BroadcastOffsets(topic, "a/b")


@pytest.mark.parametrize("strategy", ["best_tried", "strict"])
def test_route_06_moved_keys_go_to_their_new_partition_at_once(
    shared_service: ServiceProcess, admin: Admin, topic: str, strategy: Literal["best_tried", "strict"]
) -> None:
    admin.create_topic(topic, partitions=2, order_strategy=strategy)
    keys = [f"k{n}" for n in range(20)]
    rows = pa.table({"key": keys, "body": [b"rows"] * 20})
    with Producer(shared_service.url) as producer:
        before = {key: producer.send(topic, b"before", key=key).partition for key in keys}
        route = admin.create_topic(topic, partitions=4).partitions
        for key, place in zip(keys, producer.send_arrow(topic, rows).places(), strict=True):
            after = producer.send(topic, b"after", key=key)
            home = next(
                p.partition for p in route for low, high in p.logical_partitions if low <= logical_partition(key) < high
            )
            assert after.partition == place.partition == home, (
                "the producer knows of two partitions, the service of four"
            )
    assert {p.partition for p in route} - set(before.values())


def test_route_06_an_expanded_topic_is_written_and_read_everywhere(
    shared_service: ServiceProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    url = shared_service.url
    with (
        Producer(url, route_age_s_max=0.05) as producer,
        PullConsumer(url, topic, partitions_age_s_max=0.05) as consumer,
    ):
        producer.send(topic, b"x")
        admin.create_topic(topic, partitions=4)
        while len(producer.partitions(topic)) < 4:
            producer.send(topic, b"x")
        for n in range(100):
            producer.send_soon(topic, b"y", key=f"k{n}")
        producer.flush()
        found: list[str] = []
        while found.count("y") < 100:
            found += [m.text for m in consumer.poll()]
        assert len(consumer.partitions()) == 4
