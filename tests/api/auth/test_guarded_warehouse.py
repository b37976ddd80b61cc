"""A guarded warehouse has no open door: SEC-44 and SEC-45."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deltamq.api.auth.caller import EVERYBODY
from deltamq.api.first_start import make_administrator
from deltamq.api.host.peers import Call
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import ProduceRequest
from deltamq.api.ports import Ports
from deltamq.api.principals.auth_changes import AuthChanges
from deltamq.api.service.service import Service
from deltamq.mq.auth.changes import decide_put_password
from deltamq.mq.auth.keys import password_of
from deltamq.mq.errors import Unavailable
from deltamq.tables.store.file_pool import PoolingFiles
from deltamq.tables.store.local import LocalStore
from tests.api.auth.test_guarded_service import request_that_waits
from tests.api.guarded import Guarded, guarded
from tests.api.kafka.access.calls import ANYTHING, errors_in, waiting_fetch
from tests.api.kafka.raw_client import RawClient
from tests.api.running import Reply, config_for, running, until
from tests.faulty_store import FaultyStore
from tests.free_ports import free_port


def test_sec_44_a_process_without_authentication_does_not_serve_a_guarded_warehouse(tmp_path: Path) -> None:
    make_administrator(config_for(tmp_path), "admin")
    with pytest.raises(Unavailable, match="set DELTAMQ_SERVICE_AUTH=true") as refused:
        asyncio.run(Service.start(config_for(tmp_path)))
    assert refused.value.code == "warehouse_guarded"


def test_sec_44_an_open_process_ends_its_service_when_the_warehouse_is_guarded(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("orders", partitions=1)
        make_administrator(config_for(tmp_path), "admin")
        until(lambda: api.call("GET", "/readyz").status == 503)
        for method, path in (("GET", "/v1/topics"), ("PUT", "/v1/topics/evil"), ("GET", "/"), ("GET", "/readyz")):
            refused = api.call(method, path)
            assert (refused.status, refused.json["code"]) == (503, "warehouse_guarded"), path
        assert api.send("orders", "x").json["code"] == "warehouse_guarded"
        assert api.call("GET", "/v1/topics", Mq_Forwarded="1").status == 503, "whoever says that it was forwarded"
        assert api.call("GET", "/healthz").status == 200


def test_sec_44_whoever_did_not_authenticate_changes_no_access_of_a_warehouse_that_was_just_guarded(
    tmp_path: Path,
) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        make_administrator(config, "admin")
        word = password_of("admin", "SCRAM-SHA-512", salt=b"s", iterations=4_096, salted=b"p", now_ms=1)
        service = api.service
        changes = AuthChanges(service.meta, service.owners, EVERYBODY, Call("POST", b"/v1", [], b""))
        # it may not have seen yet that it is guarded
        storing = changes.store(lambda state: decide_put_password(state, word))
        with pytest.raises(Unavailable) as refused:
            asyncio.run_coroutine_threadsafe(storing, service.loop).result(30)
        assert refused.value.code == "warehouse_guarded"
        assert service.meta.now.auth.passwords == {}


def test_sec_44_before_the_first_principal_a_process_with_authentication_lets_nobody_in_and_one_without_everybody(
    tmp_path: Path,
) -> None:
    with (
        running(config_for(tmp_path, auth=True, brokers=("broker-a",))) as guarding,
        running(config_for(tmp_path, brokers=("broker-b",))) as open_,
    ):
        assert guarding.call("GET", "/readyz").status == 200
        for path in ("/v1/topics", "/v1/auth/principals"):
            assert guarding.call("GET", path).status == 401
        assert open_.call("GET", "/v1/topics").status == 200
        admin = Guarded(guarding.port, guarding.service, token=make_administrator(config_for(tmp_path), "admin")[1])
        until(lambda: open_.call("GET", "/v1/topics").json.get("code") == "warehouse_guarded")
        until(lambda: admin.call("GET", "/v1/topics").status == 200)


def test_sec_45_who_was_put_out_is_not_known_where_the_metadata_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded(tmp_path) as admin:
        meta = admin.service.meta
        assert admin.call("GET", "/v1/topics").status == 200

        def away(*_: object, **__: object) -> None:
            raise Unavailable("the disk does not answer", code="storage_error")

        for look in ("submit_all", "refresh"):
            monkeypatch.setattr(meta._log, look, away)
        monkeypatch.setattr(meta, "_read_within_s", 0.05)
        until(lambda: admin.call("GET", "/readyz").status == 503)
        for who in (admin, admin.by(None)):
            for method, path in (("GET", "/v1/topics"), ("POST", "/v1/topics/orders/messages"), ("GET", "/v1/nowhere")):
                # A renewal that was under way may have read the metadata once more.
                until(lambda: who.call(method, path).status == 503)  # noqa: B023  # called here
                refused = who.call(method, path)
                assert (refused.status, refused.json["code"]) == (503, "metadata_unread"), (method, path)
        told = admin.call("GET", "/readyz").json
        assert told["code"] == "metadata_unread" and "the disk does not answer" in told["detail"]
        assert admin.call("GET", "/healthz").status == 200
        monkeypatch.undo()
        until(lambda: admin.call("GET", "/readyz").status == 200)
        assert admin.call("GET", "/v1/topics").status == 200


def test_sec_45_after_a_pause_the_first_request_reads_the_metadata(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        for _ in range(3):
            admin.service.meta._read_at -= 3_600
            assert admin.call("GET", "/v1/topics").status == 200


class _Disk:
    """The disk of a guarded service: its reads fail, or do not end, from `go` to `come_back`."""

    def __init__(self, folder: Path, how: str) -> None:
        folder.mkdir()
        self.store = FaultyStore(LocalStore(folder, PoolingFiles(str(folder))), cheap_look=False)
        self._is_silent = how == "silent"
        self._is_back = threading.Event()

    def go(self, service: Service) -> None:
        """Let no read of the metadata end well from now on; 2 s without one are too long, for shorter tests."""
        self.store.before["read"] = self._fail
        service.meta._read_within_s = 2

    def come_back(self) -> None:
        self.store.before.clear()
        self._is_back.set()

    def _fail(self, key: str) -> None:
        if self._is_silent:
            self._is_back.wait(60)
        elif key.startswith("sys/meta"):
            raise Unavailable("the disk does not answer", code="storage_error")


@pytest.fixture(params=["failing", "silent"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[_Disk]:
    disk = _Disk(tmp_path / "warehouse", request.param)
    yield disk
    disk.come_back()


def test_sec_45_requests_that_wait_end_where_the_metadata_cannot_be_read(tmp_path: Path, disk: _Disk) -> None:
    with contextlib.ExitStack() as end:
        admin = end.enter_context(guarded(tmp_path / "warehouse", Ports(store=disk.store)))
        end.callback(disk.come_back)
        waits: dict[str, threading.Thread] = {}
        found: dict[str, Reply] = {}
        # A wait for a pull lock is not among them: it reads the metadata itself before each answer.
        for call in ("pop", "fetch", "stream", "heartbeat"):
            admin.put_topic(call)
            strategy = "exclusive" if call == "heartbeat" else "shared"
            assert admin.call("PUT", f"/v1/groups/{call}", {"consume_strategy": strategy}).status == 201
            path, body, accept = request_that_waits(admin, call, call)

            def ask(call: str = call, path: str = path, body: object = body, accept: str = accept) -> None:
                found[call] = admin.call("GET" if body is None else "POST", path, body, Accept=accept)

            waits[call] = threading.Thread(target=ask)
            waits[call].start()
        gate = admin.service.gate
        assert gate is not None
        until(lambda: len(gate._waiting) == len(waits))
        disk.go(admin.service)
        for call, thread in waits.items():
            thread.join(15)
            assert not thread.is_alive(), call
        stream = found.pop("stream")
        assert stream.status == 200 and b'"code":"metadata_unread"' in stream.body.rpartition(b"event: refused")[2]
        codes = {call: (reply.status, reply.json["code"]) for call, reply in found.items()}
        assert codes == dict.fromkeys(found, (503, "metadata_unread"))
        begun = admin.call("GET", "/v1/topics")
        assert (begun.status, begun.json["code"]) == (503, "metadata_unread"), "whether the disk fails or is silent"


def _kafka_caller(admin: Guarded, name: str) -> str:
    """A principal that may send to the topic of its name, and read it; return its key."""
    admin.put_topic(name, partitions=1)
    admin.put_principal(name)
    admin.rule(name, "topic", name, "publish", "subscribe")
    return str(admin.key(name)["key"])


def test_sec_45_kafkas_clients_are_put_out_where_the_metadata_cannot_be_read(tmp_path: Path, disk: _Disk) -> None:
    port = free_port()
    with contextlib.ExitStack() as end:
        admin = end.enter_context(guarded(tmp_path / "warehouse", Ports(store=disk.store), kafka_port=port))
        end.callback(disk.come_back)
        key = _kafka_caller(admin, "orders")
        waiting, idle = (end.enter_context(RawClient(port)) for _ in range(2))
        for client in (waiting, idle):
            assert client.plain("orders", key).error_code == ErrorCode.NONE
        waiting.send(waiting_fetch("orders"))
        until(lambda: any(one.has_waiters for one in admin.service.partitions.awaited))
        disk.go(admin.service)
        assert waiting.is_closed(15) and idle.is_closed(15)
        for way in ("plain", "bearer", "scram", "wrong"):
            with RawClient(port) as client:
                asked = {"bearer": (key,), "wrong": ("orders", "mqk_unknown")}.get(way, ("orders", key))
                answer = getattr(client, "plain" if way == "wrong" else way)(*asked)
                assert answer.error_code == ErrorCode.LEADER_NOT_AVAILABLE, "Kafka's clients try again"
                assert "the metadata was not read" in answer.error_message
                assert client.is_closed(5)
        errors: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "orders",
                "sasl.password": key,
                "error_cb": lambda error: errors.append(error.str()),
            }
        )
        producer.produce("orders", "later")
        until(lambda: producer.poll(0.05) is not None and any("the metadata was not read" in one for one in errors))
        disk.come_back()
        assert producer.flush(30) == 0
        assert admin.bodies("orders") == {"orders@broker-a": ["later"]}
        refusals = admin.call("GET", "/v1/audit/refusals").json["refusals"]
        assert not [one for one in refusals if one["call"].startswith("kafka")], "nobody is known to be refused"


@pytest.mark.parametrize("disk", ["silent"], indirect=True)
def test_sec_45_a_kafka_call_after_a_pause_waits_until_the_metadata_is_read(tmp_path: Path, disk: _Disk) -> None:
    port = free_port()
    with contextlib.ExitStack() as end:
        admin = end.enter_context(guarded(tmp_path / "warehouse", Ports(store=disk.store), kafka_port=port))
        end.callback(disk.come_back)
        key = _kafka_caller(admin, "orders")
        client = end.enter_context(RawClient(port))
        assert client.plain("orders", key).error_code == ErrorCode.NONE
        for _ in range(5):
            admin.service.meta._read_at -= 3_600
            assert errors_in(client.ask(ANYTHING[ProduceRequest]("orders"))) == {ErrorCode.INVALID_RECORD}
        disk.go(admin.service)
        admin.service.meta._read_at -= 3_600
        client.send(ANYTHING[ProduceRequest]("orders"))
        assert client.is_closed(15), "it gets no answer"


def test_sec_44_kafkas_clients_are_put_out_too(tmp_path: Path) -> None:
    port = free_port()
    with running(config_for(tmp_path, kafka_port=port)), contextlib.closing(socket.socket()) as sock:
        sock.settimeout(60)
        sock.connect(("127.0.0.1", port))
        make_administrator(config_for(tmp_path), "admin")
        assert sock.recv(1) == b"", "it is closed"
