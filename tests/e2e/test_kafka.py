"""Kafka clients against services in processes of their own, which are killed and joined (SPEC KAFKA)."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from deltamq import Admin
from deltamq import Producer as SdkProducer
from deltamq.mq.names import CONSUMER_OFFSETS
from tests.api.kafka.door import stored_messages
from tests.api.kafka.groups.test_offsets_topic import commits
from tests.api.running import until
from tests.e2e.service_process import ServiceProcess
from tests.free_ports import free_port

TIMEOUT_S = 60


class _Sender:
    """An idempotent librdkafka producer that notes what was acknowledged where."""

    def __init__(self, servers: str, topic: str, **settings: object) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 50, **settings}
        self._producer = Producer({"bootstrap.servers": servers, "message.timeout.ms": 50_000, **settings})
        self._topic = topic
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self.errors: list[object] = []

    def send(self, body: str) -> None:
        def told(error, message) -> None:
            if error is not None:
                self.errors.append(error)
            else:
                self.acknowledged[body] = (message.partition(), message.offset())

        self._producer.produce(self._topic, value=body, key=body, on_delivery=told)
        self._producer.poll(0.002)

    def finish(self) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0
        assert not self.errors


def _stored(url: str, topic: str) -> dict[tuple[int, int], str]:
    """Return all bodies by place."""
    return {place: one.text for place, one in stored_messages(url, topic).items()}


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture
def services() -> Iterator[list[ServiceProcess]]:
    found: list[ServiceProcess] = []
    yield found
    for one in found:
        one.close()


@pytest.mark.promise("PORT-1")
def test_kafka_03_a_kill_under_an_idempotent_producer_loses_and_repeats_nothing(warehouse, services) -> None:
    port = free_port()
    service = ServiceProcess(warehouse, "--kafka-port", str(port))
    services.append(service)
    with Admin(service.url) as admin:
        admin.create_topic("orders", partitions=2)
    sender = _Sender(f"127.0.0.1:{port}", "orders")
    sent = []
    for number in range(3_000):
        sent.append(f"message {number}")
        sender.send(sent[-1])
        if number % 1_000 == 500:
            until(lambda: len(sender.acknowledged) or sender._producer.poll(0.01) is None)
            service.kill()
            service.start()
    sender.finish()
    stored = _stored(service.url, "orders")
    assert sorted(stored.values()) == sorted(sent)
    assert {body: place for place, body in stored.items()} == sender.acknowledged


def test_kafka_08_processes_show_each_other_and_any_may_append(warehouse, services) -> None:
    ports = [free_port(), free_port()]
    for broker, port in zip(("broker-a", "broker-b"), ports, strict=True):
        services.append(ServiceProcess(warehouse, "--broker", broker, "--kafka-port", str(port)))
    with Admin(services[0].url) as admin:
        admin.create_topic("orders", partitions=4)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    client = AdminClient({"bootstrap.servers": addresses[0]})
    until(lambda: len(client.list_topics(timeout=TIMEOUT_S).brokers) == 2)
    shown = client.list_topics("orders", timeout=TIMEOUT_S)
    nodes = {node: f"{one.host}:{one.port}" for node, one in shown.brokers.items()}
    assert sorted(nodes.values()) == sorted(addresses)
    assert {one.leader for one in shown.topics["orders"].partitions.values()} == set(nodes)
    sender = _Sender(addresses[1], "orders")
    for number in range(200):
        sender.send(f"message {number}")
    sender.finish()
    services[1].kill()  # another process takes its broker over, and leads its partitions
    until(lambda: len(client.list_topics(timeout=TIMEOUT_S).brokers) == 1)
    for number in range(200, 300):
        sender.send(f"message {number}")
    sender.finish()
    consumer = Consumer({"bootstrap.servers": addresses[0], "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([Place("orders", index, 0) for index in range(4)])
    found: list[str] = []
    rounds = itertools.count()
    while len(found) < 300 and next(rounds) < 10 * TIMEOUT_S:
        found += [one.value().decode() for one in consumer.consume(300, 0.1) if one.error() is None]
    consumer.close()
    assert sorted(found) == sorted(f"message {number}" for number in range(300))


def test_kafka_13_the_text_of_a_commit_outlives_the_process_that_stored_it(warehouse, services) -> None:
    ports = [free_port(), free_port()]
    for broker, port in zip(("broker-a", "broker-b"), ports, strict=True):
        services.append(ServiceProcess(warehouse, "--broker", broker, "--kafka-port", str(port)))
    with Admin(services[0].url) as admin:
        admin.create_topic("orders", partitions=4)
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    sender = _Sender(servers, "orders")
    for number in range(100):
        sender.send(f"message {number}")
    sender.finish()
    places = [Place("orders", index) for index in range(4)]

    def told(port: int) -> list[tuple[int, str]]:
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "billing", "enable.auto.commit": False}
        consumer = Consumer(settings)
        try:
            return [(one.offset, one.metadata) for one in consumer.committed(places, TIMEOUT_S)]
        finally:
            consumer.close()

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "billing", "enable.auto.commit": False})
    for word in ("first", "last"):
        texts = [Place("orders", index, 1, metadata=f"{word} of {index}") for index in range(4)]
        consumer.commit(offsets=texts, asynchronous=False)
    consumer.close()
    expected = [(1, f"last of {index}") for index in range(4)]
    assert [told(port) for port in ports] == [expected, expected], "whichever process is asked"
    services[0].kill()  # another process takes its broker over
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[1]}"})
    until(lambda: len(client.list_topics(timeout=TIMEOUT_S).brokers) == 1)
    assert told(ports[1]) == expected
    again = Consumer({"bootstrap.servers": f"127.0.0.1:{ports[1]}", "group.id": "billing"})
    again.commit(offsets=[Place("orders", index, 1, metadata="anew") for index in range(4)], asynchronous=False)
    again.close()
    assert told(ports[1]) == [(1, "anew")] * 4


def _consume(members: list[Consumer], done) -> list[str]:
    """Let members of a group read and commit in turns until `done(bodies)`."""
    found: list[str] = []
    rounds = itertools.count()
    while not done(found):
        assert next(rounds) < 10 * TIMEOUT_S, "the members did not come so far"
        for member in members:
            got = [one for one in member.consume(100, 0.1) if one.error() is None]
            found += [one.value().decode() for one in got]
            if got:
                with contextlib.suppress(KafkaException):  # nobody coordinates at the moment, or there is a new plan
                    member.commit(asynchronous=False)
    return found


def test_kafka_09_members_join_again_when_the_process_that_knew_them_is_killed(warehouse, services) -> None:
    ports = [free_port(), free_port()]
    for broker, port in zip(("broker-a", "broker-b"), ports, strict=True):
        services.append(ServiceProcess(warehouse, "--broker", broker, "--kafka-port", str(port)))
    with Admin(services[1].url) as admin:
        admin.create_topic("orders", partitions=4)
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    settings = {
        "bootstrap.servers": servers,
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 1_000,
    }
    sender = _Sender(servers, "orders")
    for number in range(100):
        sender.send(f"message {number}")
    sender.finish()
    members = [Consumer(settings) for _ in range(2)]
    for member in members:
        member.subscribe(["orders"])
    before = _consume(members, lambda got: len(set(got)) == 100 and all(one.assignment() for one in members))
    services[0].kill()  # it has the meta role, since it was the first
    for number in range(100, 200):
        sender.send(f"message {number}")
    sender.finish()
    after = _consume(members, lambda got: len(set(before + got)) == 200)
    assert set(before + after) == {f"message {number}" for number in range(200)}
    admin_client = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[1]}"})
    # They read on without their group, so they may not have joined again yet.
    deadline = time.monotonic() + TIMEOUT_S
    while len(admin_client.describe_consumer_groups(["billing"])["billing"].result(TIMEOUT_S).members) != 2:
        assert time.monotonic() < deadline, "both have joined again"
        for member in members:
            member.poll(0.1)
    for member in members:
        member.close()


def test_kafka_30_two_processes_show_the_same_offsets_and_take_commits_of_how_far_they_are_read(
    warehouse, services
) -> None:
    ports = [free_port(), free_port()]
    for broker, port in zip(("broker-a", "broker-b"), ports, strict=True):
        services.append(ServiceProcess(warehouse, "--broker", broker, "--kafka-port", str(port)))
    with Admin(services[0].url) as admin:
        admin.create_topic("orders", partitions=4)
        admin.commit_offsets("billing", "orders", {one.partition: 0 for one in admin.get_topic("orders").partitions})
    addresses = [f"127.0.0.1:{port}" for port in ports]
    shown = AdminClient({"bootstrap.servers": addresses[0]}).list_topics(CONSUMER_OFFSETS, timeout=TIMEOUT_S)
    assert len({one.leader for one in shown.topics[CONSUMER_OFFSETS].partitions.values()}) == 2
    seen = commits(addresses[0])
    assert {(one.place[0], one.partition) for one in seen} == {(0, 0), (0, 2), (1, 1), (1, 3)}, (
        "each in its broker's log"
    )
    assert commits(addresses[1]) == seen
    for address in addresses:  # one of the two partitions is another process's, whichever is asked
        consumer = Consumer({"bootstrap.servers": address, "group.id": "watcher", "enable.auto.commit": False})
        done = consumer.commit(offsets=[Place(CONSUMER_OFFSETS, index, 2) for index in (0, 1)], asynchronous=False)
        assert [(one.offset, one.error) for one in done] == [(2, None)] * 2
        consumer.close()
    services[1].kill()
    until(lambda: len({one.group for one in commits(addresses[0])}) == 2)
    after = commits(addresses[0])
    assert [one for one in after if one.group == "billing"] == seen
    assert {(one.partition, one.at) for one in after if one.group == "watcher"} == {(0, (2, "")), (1, (2, ""))}


def test_kafka_30_a_kill_after_a_reset_and_an_end_leaves_no_reader_with_old_offsets(warehouse, services) -> None:
    port = free_port()
    service = ServiceProcess(warehouse, "--kafka-port", str(port))
    services.append(service)
    with Admin(service.url) as admin:
        admin.create_topic("orders", partitions=1)
        with SdkProducer(service.url) as producer:
            for number in range(9):
                producer.send("orders", f"message {number}")
        names = [one.partition for one in admin.get_topic("orders").partitions]
        for group in ("billing", "gone"):
            admin.commit_offsets(group, "orders", dict.fromkeys(names, 8))
        admin.reset_offsets("billing", "orders", dict.fromkeys(names, 2))
        admin.delete_group("gone")
    service.kill()  # within the second after which this would have been in the log
    service.start()
    address = f"127.0.0.1:{port}"
    until(lambda: {one.group: one.at for one in commits(address)} == {"billing": (2, ""), "gone": None})
