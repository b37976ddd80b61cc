"""The SDK while the service dies, hangs, and loses its answers: each message once, in order, errors that are true."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pyarrow as pa
import pytest

from deltamq import Admin, Producer, PullConsumer
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.produce.repeatable_sends import TableProgress, TableSendInterrupted, TableSendState
from deltamq.mq.errors import Unknown
from tests.e2e.chaos_proxy import ChaosProxy
from tests.e2e.service_process import ServiceProcess


def bodies_by_key(url: str, topic: str) -> dict[str | None, list[int]]:
    """The numbers of each key in the order in which they are stored; every offset is read once."""
    found: dict[str | None, list[int]] = defaultdict(list)
    with PullConsumer(url, topic) as consumer:
        ends = consumer.end_offsets()
        offsets: dict[str, list[int]] = defaultdict(list)
        while consumer.positions() != ends:
            for message in consumer.poll(5_000):
                found[message.key].append(int(message.body))
                offsets[message.partition].append(message.offset)
    assert all(seen == list(range(ends[partition])) for partition, seen in offsets.items())
    return found


@pytest.mark.parametrize("signal", ["kill", pytest.param("stop", marks=pytest.mark.long)])
def test_send_05_a_service_that_dies_under_load_stores_each_message_once_in_order(
    service: ServiceProcess, signal: str
) -> None:
    with Admin(service.url) as admin:
        admin.create_topic("orders", partitions=3)
    crashes = 2
    with Producer(service.url, retries=1_000, timeout_s=60, request_timeout_s=5) as producer:
        stop = threading.Event()
        sent = []

        def run() -> None:
            n = 0
            while not stop.is_set():
                sent.append((n, producer.send_soon("orders", str(n), key=f"k{n % 20}")))
                n += 1
                if n % 200 == 0:
                    stop.wait(0.02)

        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(crashes):
            done = producer.stats().sent
            while producer.stats().sent < done + 500:
                stop.wait(0.01)
            getattr(service, signal)()
            service.start()
        done = producer.stats().sent
        while producer.stats().sent < done + 500:
            stop.wait(0.01)
        stop.set()
        thread.join()
        places = [(n, future.result(timeout=60)) for n, future in sent]
        assert producer.stats().retries > 0
    assert len({(place.partition, place.offset) for _, place in places}) == len(places)
    found = bodies_by_key(service.url, "orders")
    assert {key: sorted(numbers) for key, numbers in found.items()} == found
    assert sorted(n for numbers in found.values() for n in numbers) == list(range(len(places)))


@pytest.mark.promise("ONCE-4")
def test_send_05_lost_answers_repeat_nothing(service: ServiceProcess) -> None:
    with Admin(service.url) as admin:
        admin.create_topic("orders", partitions=2)
    port = int(service.url.rpartition(":")[2])
    with ChaosProxy(port, loss=0.2, seed=7) as proxy:
        with Producer(proxy.url, retries=1_000, first_wait_ms=1, wait_ms_max=10) as producer:
            futures = []
            for n in range(2_000):
                futures.append(producer.send_soon("orders", str(n), key=f"k{n % 10}"))
                if n % 20 == 0:
                    futures[-1].result(timeout=30)
            places = [future.result(timeout=30) for future in futures]
        assert proxy.lost > 20
        assert sum(place.duplicate for place in places) > 0
        # An answer of several packets is lost more often than it arrives.
        patience = Patience(retries=1_000, first_wait_ms=1, wait_ms_max=10)
        with PullConsumer(proxy.url, "orders", patience=patience, fetch_messages=200) as consumer:
            seen: list[int] = []
            while len(seen) < 2_000:
                seen += [int(message.body) for message in consumer.poll(50)]
    assert sorted(seen) == list(range(2_000))
    assert bodies_by_key(service.url, "orders") == {f"k{k}": list(range(k, 2_000, 10)) for k in range(10)}


def test_send_05_a_paused_service_is_an_unknown_outcome_and_stores_at_most_once(service: ServiceProcess) -> None:
    with Admin(service.url) as admin:
        admin.create_topic("orders", partitions=1)
    with Producer(service.url, timeout_s=1, request_timeout_s=0.3) as producer:
        producer.send("orders", "0", key="k")
        service.pause()
        began = time.monotonic()
        with pytest.raises(Unknown):
            producer.send("orders", "1", key="k")
        assert time.monotonic() - began < 30
        service.resume()
        # The paused request may still be applied; what follows is not confused by it.
        place = producer.send("orders", "2", key="k", timeout_s=20)
    numbers = bodies_by_key(service.url, "orders")["k"]
    assert numbers in ([0, 2], [0, 1, 2], [0, 2, 1])
    assert numbers[place.offset] == 2


def test_send_05_a_tables_send_is_taken_up_after_the_service_died(service: ServiceProcess) -> None:
    with Admin(service.url) as admin:
        admin.create_topic("orders", partitions=3)
    rows = 300_000
    table = pa.table({"body": [f"{n:0300}" for n in range(rows)], "key": [f"k{n % 100}" for n in range(rows)]})
    states: list[TableSendState] = []
    with Producer(service.url, timeout_s=2, retries=2) as producer:

        def crash_once(progress: TableProgress) -> None:
            states.append(progress.state)
            if len(states) == 2:
                service.kill()

        with pytest.raises(TableSendInterrupted) as caught:
            producer.send_table("orders", table, progress=crash_once)
    assert 0 < caught.value.state.rows_stored < rows
    service.start()
    state = TableSendState.from_json(caught.value.state.to_json())
    with Producer(service.url) as producer:
        producer.send_table("orders", table, progress=False, state=state)
    found = bodies_by_key(service.url, "orders")
    assert found == {f"k{k}": list(range(k, rows, 100)) for k in range(100)}


def test_a_consumer_goes_on_after_a_restart(service: ServiceProcess) -> None:
    with Producer(service.url) as producer:
        for n in range(100):
            producer.send_soon("orders", str(n), key="k")
        producer.flush()
        with PullConsumer(service.url, "orders") as consumer:
            seen = [int(m.body) for m in consumer.poll(10)]
            service.kill()
            service.start()
            producer.send("orders", "100", key="k")
            while len(seen) < 101:
                seen += [int(m.body) for m in consumer.poll(10)]
    assert seen == list(range(101))
