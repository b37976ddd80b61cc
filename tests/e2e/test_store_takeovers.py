"""Processes on an object store: at rest they cost little, and one that ends is replaced soon (META-8, LOOK-24).

The store is a real S3 server behind a proxy that counts; the lease is so long that no test waits for its end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.api.running import config_for, running
from tests.e2e.service_process import ServiceProcess
from tests.e2e.test_two_brokers import Broker, until
from tests.s3_server import ServerUnavailable
from tests.store_proxy import Counts, StoreProxy, store_proxy

_LONG_LEASE = {"DELTAMQ_SERVICE_LEASE_MS": "600000"}
_TOPICS = 30
#: Seconds for which the calls of a process at rest are counted.
_WINDOW_S = 20.0


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProxy]:
    try:
        with store_proxy(tmp_path_factory.mktemp("store")) as started, pytest.MonkeyPatch.context() as patch:
            for name, value in (started.environment() | _LONG_LEASE).items():
                patch.setenv(name, value)
            yield started
    except ServerUnavailable as error:
        pytest.skip(str(error))


class Door:
    """An address of a service: connections are passed on while it is open, and refused while it is not."""

    def __init__(self) -> None:
        self.target = 0
        self._port = 0
        self._open: set[socket.socket] = set()
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections, and end those that there are."""
        self._end((self._listener, *list(self._open)))
        self._open.clear()

    @staticmethod
    def _end(connections: Iterable[socket.socket]) -> None:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._open.add(client)
                try:
                    service = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()  # nobody listens behind the door yet, or any more
                    continue
                self._open.add(service)
                if listener.fileno() < 0:
                    self._end((client, service))
                    return
                for one, other in ((client, service), (service, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


class StoreBroker(Broker):
    """A process on the store that was started for one broker."""

    def __init__(self, folder: Path, uri: str, name: str, *flags: str) -> None:
        self.name = name
        self.process = ServiceProcess(folder / "none", "--warehouse", uri, "--broker", name, *flags)


@contextlib.contextmanager
def processes(folder: Path, uri: str, door: Door | None = None) -> Iterator[tuple[StoreBroker, StoreBroker]]:
    """Process a serves broker-a, process b broker-b; others reach b through the door."""
    with contextlib.ExitStack() as ended:
        a = StoreBroker(folder, uri, "broker-a")
        ended.callback(a.process.close)
        with pytest.MonkeyPatch.context() as patch:
            if door is not None:
                patch.setenv("DELTAMQ_SERVICE_ADDRESS", door.url)
            b = StoreBroker(folder, uri, "broker-b")
        ended.callback(b.process.close)
        if door is not None:
            door.target = int(b.process.url.rpartition(":")[2])
        theirs = b.process.url if door is None else door.url
        until(lambda: a.serves() == {"broker-a": a.url, "broker-b": theirs} == b.serves())
        # Who has not reached a process yet does not take it for ended because it refuses connections.
        until(lambda: (folder / "service.log").read_text().count("event=host_reached") >= 2)
        yield a, b


def _pops(broker: Broker, topic: str) -> list[str] | None:
    """What a pop of broker-b's partition gives as soon as somebody serves it."""
    reply = broker.pop(topic, "billing", partition=f"{topic}@broker-b", max_messages=10)
    return [message["body"] for message in reply.json["messages"]] if reply.status == 200 else None


@pytest.mark.promise("HOST-2")
def test_meta_08_a_killed_process_is_replaced_long_before_its_lease_ends(
    proxy: StoreProxy, tmp_path: Path, record_property: Any
) -> None:
    with processes(tmp_path, proxy.uri("killed")) as (a, b):
        assert a.send("orders", "x", "y", partition="orders@broker-b").status == 200
        assert _pops(b, "orders") == ["x", "y"]
        proxy.set_latency(put_ms=50, get_ms=20)
        b.process.kill()
        began = time.monotonic()
        assert until(lambda: _pops(a, "orders"), within_s=60) == ["x", "y"]
        proxy.set_latency()
        record_property("served_again_s", round(time.monotonic() - began, 2))
        print(f"served again after {time.monotonic() - began:.2f} s")
        # A process at the same address replaces it, too, though the other one never reached its earlier life.
        b.process.start()
        until(lambda: a.serves() == {"broker-a": a.url, "broker-b": b.url} == b.serves(), within_s=60)


def test_meta_08_a_process_that_starts_again_takes_over_its_earlier_life(proxy: StoreProxy, tmp_path: Path) -> None:
    uri = proxy.uri("again")
    broker = StoreBroker(tmp_path, uri, "broker-b")
    try:
        assert broker.send("orders", "x", partition="orders@broker-b").status == 200
        broker.process.kill()
        broker.process.start()
        assert until(lambda: _pops(broker, "orders"), within_s=60) == ["x"]
    finally:
        broker.process.close()


def test_meta_08_an_owner_whom_others_cannot_reach_answers_in_the_log_and_stays(
    proxy: StoreProxy, tmp_path: Path
) -> None:
    with contextlib.closing(Door()) as door, processes(tmp_path, proxy.uri("cut"), door) as (a, b):
        assert b.send("orders", "x", partition="orders@broker-b").status == 200
        epoch, log = b.epoch("broker-b"), tmp_path / "service.log"
        door.close()
        until(lambda: "event=hosts_asked" in log.read_text())
        # Asked, and asked again: it has answered in between.
        until(lambda: log.read_text().count("event=lease_renewed") >= 1)
        assert _pops(b, "orders") == ["x"]
        assert (a.epoch("broker-b"), b.epoch("broker-b")) == (epoch, epoch), "nobody has taken it"
        door.open()


@pytest.mark.promise("HOST-6")
def test_meta_08_an_owner_that_is_replaced_alive_is_fenced_and_loses_nothing(proxy: StoreProxy, tmp_path: Path) -> None:
    """It is cut off from the others, and stopped while they ask it; when it goes on, it believes in its lease."""
    with contextlib.closing(Door()) as door, processes(tmp_path, proxy.uri("fenced"), door) as (a, b):
        sent = [f"{number}" for number in range(4)]
        assert a.send("orders", *sent, partition="orders@broker-b").status == 200
        popped = b.pop("orders", "billing", partition="orders@broker-b", max_messages=2)
        handles = [message["handle"] for message in popped.json["messages"]]
        b.process.pause()
        door.close()
        until(lambda: a.serves().get("broker-b") == a.url, within_s=60)
        b.process.resume()
        late = b.ack("billing", *handles)
        assert late.status == 503 or late.json["acked"] == 0, late
        door.open()
        until(lambda: a.serves() == {"broker-a": a.url, "broker-b": door.url} == b.serves(), within_s=60)
        assert b.send("orders", "4", partition="orders@broker-b").status == 200
        done: list[str] = []
        while len(done) < 5:
            reply = until(lambda: (r := b.pop("orders", "billing", partition="orders@broker-b")).status == 200 and r)
            done += [message["body"] for message in reply.json["messages"]]
            acked = b.ack("billing", *(message["handle"] for message in reply.json["messages"]))
            assert acked.json["failed"] == []
        assert sorted(done) == ["0", "1", "2", "3", "4"], "nothing is lost, and nothing that is done comes again"


def _counted(proxy: StoreProxy) -> Counts:
    proxy.reset()
    time.sleep(_WINDOW_S)  # the length of the measurement
    return proxy.counts()


def _per_s(counts: Counts, *operations: str) -> float:
    return sum(counts.calls.get(name, 0) for name in operations) / counts.seconds


@pytest.mark.long
def test_look_24_a_process_at_rest_makes_few_calls_however_many_topics_there_are(
    proxy: StoreProxy, record_property: Any
) -> None:
    config = config_for(proxy.uri("idle"))
    with running(config) as api:
        for number in range(_TOPICS):
            assert api.send(f"t{number}", "x").status == 200
        assert api.call("POST", "/v1/groups/g/topics/t0/pop", {}).status == 200
    with running(config) as api:
        # What begins with a process has ended when it looks as seldom as it does at rest.
        at_rest = config.service.lease_renew_ms / 2_000

        def looks() -> bool:
            proxy.reset()
            time.sleep(2 * at_rest)
            return _is_at_rest(proxy.counts().calls)

        until(looks, within_s=60)
        counts = _counted(proxy)
        assert api.send("t0", "y").status == 200, "it serves all the same"
    rates = {name: round(calls / counts.seconds, 3) for name, calls in counts.calls.items()}
    record_property("calls_a_second", str(rates))
    print(f"at rest: {rates}")
    assert _per_s(counts, "GET", "HEAD") < 1
    assert counts.puts <= counts.seconds / 10
    assert _per_s(counts, "LIST") < 0.5


def _is_at_rest(calls: Mapping[str, int]) -> bool:
    return sum(calls.values()) <= 4


def test_look_24_what_one_process_changes_the_others_know_though_they_look_seldom(
    proxy: StoreProxy, tmp_path: Path
) -> None:
    """With looks once in five minutes only what they are told tells them."""
    assert "DELTAMQ_SERVICE_LEASE_RENEW_MS" not in os.environ
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAMQ_SERVICE_LEASE_RENEW_MS", "300000")
        with processes(tmp_path, proxy.uri("told")) as (a, b):
            for number, (one, other) in enumerate(((a, b), (b, a)) * 2):
                assert one.call("PUT", "/v1/brokers/broker-a", {"writable": False, "reason": f"{number}"}).status == 200

                def knows(other: Broker = other, reason: str = f"{number}") -> bool:
                    brokers = other.call("GET", "/v1/cluster").json["brokers"]
                    return any(reason == one.get("reason") for one in brokers)

                until(knows)
