"""A broker is drained for maintenance under load, and comes back, without a failed send (SPEC ROUTE-9, SEND-2)."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq import Admin, Message, Producer, PullConsumer
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.errors import DeltaMQError
from tests.e2e.service_process import ServiceProcess
from tests.forked import until

QUICK = Patience(first_wait_ms=20, wait_ms_max=200, timeout_s=60, request_timeout_s=5)
#: Messages that are sent in each phase, at least.
PHASE = 60


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServiceProcess]]:
    warehouse: Path = tmp_path_factory.mktemp("maintenance") / "warehouse"
    made = [ServiceProcess(warehouse, "--broker", name) for name in ("broker-a", "broker-b")]
    with Admin(made[0].url, patience=QUICK) as admin:
        until(lambda: all(one.online for one in admin.cluster().brokers) and len(admin.cluster().hosts) == 2)
    yield made
    for one in made:
        one.close()


@pytest.fixture
def admin(pair: list[ServiceProcess]) -> Iterator[Admin]:
    with Admin(pair[1].url, patience=QUICK) as admin:
        yield admin
        admin.set_broker_access("broker-a")


@pytest.fixture
def owner(pair: list[ServiceProcess]) -> Iterator[Admin]:
    """Asks the process of broker-a, which alone knows at once where its partitions end and whether it is closed."""
    with Admin(pair[0].url, patience=QUICK) as admin:
        yield admin


def producing(pair: list[ServiceProcess]) -> Producer:
    return Producer(pair[0].url, first_wait_ms=20, wait_ms_max=200, timeout_s=60)


class Load:
    """Threads that send until the block ends: with keys, without, and in batches. Each body is sent once."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.sent: list[str] = []
        self.errors: list[DeltaMQError] = []
        self._producer = producer
        self._topic = topic
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in ("key", "none", "batch")]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, kind: str) -> None:
        while not self._stop.is_set():
            bodies = [f"m{next(self._numbers)}" for _ in range(5 if kind == "batch" else 1)]
            try:
                if kind == "batch":
                    self._producer.send_batch(self._topic, [Message(body.encode()) for body in bodies])
                else:
                    self._producer.send(self._topic, bodies[0], key=bodies[0] if kind == "key" else None)
            except DeltaMQError as error:
                self.errors.append(error)
            else:
                self.sent += bodies

    def more(self) -> None:
        """Return after another phase of messages."""
        until_count = len(self.sent) + PHASE
        until(lambda: len(self.sent) >= until_count or bool(self.errors), 60)
        assert self.errors == []


def end_of_a(owner: Admin, topic: str) -> int:
    """Messages that were ever stored at broker-a."""
    found = owner.get_topic(topic).partitions
    return sum(one.max_offset or 0 for one in found if one.broker == "broker-a")


def all_bodies(url: str, topic: str, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    with PullConsumer(url, topic, patience=QUICK) as reader:
        until(lambda: (found.update(one.text for one in reader.poll(wait_ms=200)), found.total() >= count)[1], 60)
        found.update(one.text for one in reader.poll(wait_ms=200))
    return found


def is_drained(owner: Admin, topic: str, load: Load) -> bool:
    """Whether a phase of load leaves no message at broker-a."""
    before = end_of_a(owner, topic)
    load.more()
    return end_of_a(owner, topic) == before


def test_send_02_no_send_fails_while_a_broker_is_closed_and_opened_again(
    pair: list[ServiceProcess], admin: Admin, owner: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=4)
    with producing(pair) as producer, Load(producer, topic) as load:
        load.more()
        assert end_of_a(owner, topic) > 0
        admin.set_broker_access("broker-a", writable=False, reason="maintenance")
        until(lambda: is_drained(owner, topic, load), 60)
        at = end_of_a(owner, topic)
        admin.set_broker_access("broker-a")
        until(lambda: end_of_a(owner, topic) > at, 60)
        load.more()
    assert load.errors == []
    assert all_bodies(pair[0].url, topic, len(load.sent)) == Counter(load.sent)


def test_route_09_a_static_topic_is_remapped_away_before_its_broker_is_closed(
    pair: list[ServiceProcess], admin: Admin, owner: Admin, topic: str
) -> None:
    admin.put_static_topic(topic, 4)
    with producing(pair) as producer, Load(producer, topic) as load:
        load.more()
        admin.remap(topic, ["broker-b"], mode="available")
        admin.set_broker_access("broker-a", writable=False, reason="maintenance")
        until(lambda: is_drained(owner, topic, load), 60)
        admin.set_broker_access("broker-a")
        admin.remap(topic, ["broker-a", "broker-b"], mode="strict")
        load.more()
    assert load.errors == []
    assert all_bodies(pair[0].url, topic, len(load.sent)) == Counter(load.sent)


def test_send_02_a_strict_topic_waits_and_keeps_its_order(
    pair: list[ServiceProcess], admin: Admin, owner: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=2, order_strategy="strict")
    at_a = next(one.partition for one in admin.get_topic(topic).partitions if one.broker == "broker-a")
    with producing(pair) as producer:
        first = {f"k{at}": producer.send(topic, "first", key=f"k{at}") for at in range(10)}
        key = next(key for key, sent in first.items() if sent.partition == at_a)
        at = 1 + max(sent.offset for sent in first.values() if sent.partition == at_a)
        owner.set_broker_access("broker-a", writable=False)
        before = producer.stats().retries
        sends = [producer.send_soon(topic, str(number), key=key) for number in range(20)]
        until(lambda: producer.stats().retries > before)
        assert not any(one.done() for one in sends)
        admin.set_broker_access("broker-a")
        offsets = [one.result(60).offset for one in sends]
    assert offsets == list(range(at, at + 20))
