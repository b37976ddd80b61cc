"""Clients of a cluster of two service processes: they find both, and go on when one of them is killed (SPEC META-1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq import Admin, PopConsumer, Producer, PullConsumer
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import PoppedMessage
from tests.e2e.service_process import ServiceProcess
from tests.forked import until

QUICK = Patience(first_wait_ms=20, wait_ms_max=200, timeout_s=60, request_timeout_s=5)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServiceProcess]]:
    for name, value in {"LEASE_MS": "2000", "LEASE_RENEW_MS": "500", "LEASE_MARGIN_MS": "300"}.items():
        monkeypatch.setenv(f"DELTAMQ_SERVICE_{name}", value)
    made = [ServiceProcess(tmp_path / "warehouse", "--broker", name) for name in ("broker-a", "broker-b")]
    with Admin(made[0].url, patience=QUICK) as admin:
        until(lambda: all(one.online for one in admin.cluster().brokers) and len(admin.cluster().hosts) == 2)
    yield made
    for one in made:
        one.close()


@pytest.mark.long
def test_pop_01_a_consumer_that_knows_one_process_pops_at_both_and_loses_nothing_with_one_of_them(
    pair: list[ServiceProcess], topic: str
) -> None:
    with Admin(pair[0].url, patience=QUICK) as admin:
        served = {one.broker: one.address for one in admin.cluster().brokers}
        assert served == {"broker-a": pair[0].url, "broker-b": pair[1].url}
        admin.create_topic(topic, partitions=4)
    handled: set[str] = set()
    lock = threading.Lock()

    def handle(message: PoppedMessage) -> None:
        with lock:
            handled.add(message.text)

    with (
        Producer(pair[0].url, first_wait_ms=20, wait_ms_max=200, timeout_s=60) as producer,
        PopConsumer(pair[0].url, "billing", topic, handle, patience=QUICK) as consumer,
    ):
        for at in range(200):
            producer.send(topic, str(at), key=str(at))
        until(lambda: len(handled) == 200)
        pair[0].kill()
        for at in range(200, 300):
            producer.send(topic, str(at), key=str(at))
        until(lambda: len(handled) == 300, 60)
        assert consumer.error is None
    assert handled == {str(at) for at in range(300)}


def test_meta_01_producer_and_reader_go_on_at_the_process_that_is_left(pair: list[ServiceProcess], topic: str) -> None:
    with Admin(pair[1].url, patience=QUICK) as admin:
        admin.create_topic(topic, partitions=2)
    with (
        Producer(pair[1].url, first_wait_ms=20, wait_ms_max=200, timeout_s=60) as producer,
        PullConsumer(pair[1].url, topic, patience=QUICK) as reader,
    ):
        found: list[str] = []

        def read(count: int) -> None:
            while len(found) < count:
                found.extend(message.text for message in reader.poll(wait_ms=2_000))

        for at in range(50):
            producer.send(topic, str(at), key=str(at))
        read(50)
        pair[1].kill()
        for at in range(50, 100):
            producer.send(topic, str(at), key=str(at))
        read(100)
    assert sorted(found, key=int) == [str(at) for at in range(100)]
