"""The service over TLS: every client, certificates of clients, certificates replaced under load, two processes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.root import cli
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import Result
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.errors import DeltaMQError, Unavailable
from deltamq.mq.order.orderly import Verdict
from tests.certificates import Authority, Pair
from tests.e2e.service_process import ServiceProcess


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


QUICK = Patience(retries=1, first_wait_ms=1)
Start = Callable[..., ServiceProcess]


@pytest.fixture
def start(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start services with TLS; settings as `tls_client_auth="required"`."""
    started: list[ServiceProcess] = []

    def start(*flags: str, server: Pair | None = None, **settings: str) -> ServiceProcess:
        pair = server or authority.server()
        for name, value in {"tls_cert": pair.cert, "tls_key": pair.key, "tls_ca": authority.ca, **settings}.items():
            monkeypatch.setenv(f"DELTAMQ_SERVICE_{name.upper()}", value)
        started.append(ServiceProcess(tmp_path / "warehouse", *flags))
        for name in [one for one in os.environ if one.startswith("DELTAMQ_SERVICE_")]:
            monkeypatch.delenv(name)
        return started[-1]

    yield start
    for service in started:
        service.close()


def test_sec_25_every_client_speaks_tls(start: Start, authority: Authority) -> None:
    service = start()
    assert service.url.startswith("https://127.0.0.1:")
    with Producer(service.url, ca=authority.ca) as producer:
        for number in range(20):
            producer.send("orders", b"%d" % number, key="a")
    with PullConsumer(service.url, "orders", ca=authority.ca) as pull:
        found: list[bytes] = []
        while len(found) < 20:
            found += [message.body for message in pull.poll(100)]
    assert found == [b"%d" % number for number in range(20)]
    done = threading.Event()
    popped: list[bytes] = []

    def handle(message: Any) -> Result:
        popped.append(message.body)
        if len(set(popped)) == 20:
            done.set()
        return Result.OK

    with PopConsumer(service.url, "billing", "orders", handle, ca=authority.ca):
        assert done.wait(60)
    done.clear()
    with OrderlyConsumer(service.url, "ledger", "orders", lambda one: done.set() or Verdict.SUCCESS, ca=authority.ca):
        assert done.wait(60)
    result = CliRunner().invoke(cli, ["doctor", "--url", service.url, "--ca", authority.ca, "--json"])
    [check] = [one for one in json.loads(result.output)["checks"] if one["name"] == "service"]
    assert check["health"] == "ok", check
    assert service.stop() == 0


def test_sec_25_who_is_not_trusted_is_not_spoken_to(start: Start, tmp_path: Path) -> None:
    service = start()
    for options in ({}, {"ca": Authority(tmp_path / "another").ca}):
        with pytest.raises(Unavailable) as caught, Admin(service.url, patience=QUICK, **options) as admin:
            admin.list_topics()
        assert caught.value.code == "certificate_not_trusted", caught.value
    with pytest.raises(DeltaMQError), Producer(service.url.replace("https", "http"), timeout_s=1) as producer:
        producer.send("orders", b"1")


def test_sec_25_versions_before_tls_1_2_are_refused(start: Start, authority: Authority) -> None:
    port = int(start().url.rpartition(":")[2])
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=authority.ca)
        context.minimum_version = context.maximum_version = version
        with (
            closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as plain,
            closing(context.wrap_socket(plain, server_hostname="127.0.0.1")) as agreed,
        ):
            assert agreed.version() == version.name.replace("_", ".")
    # The hello of a client that knows TLS 1.1 only: one cipher, no extensions.
    body = b"\x03\x02" + b"r" * 32 + b"\x00" + b"\x00\x02\x00\x2f" + b"\x01\x00"
    hello = b"\x01" + len(body).to_bytes(3, "big") + body
    with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as plain:
        plain.sendall(b"\x16\x03\x01" + len(hello).to_bytes(2, "big") + hello)
        assert plain.recv(64)[:1] in (b"", b"\x15"), "an alert, or the end"


def test_sec_26_clients_show_a_certificate_where_it_is_required(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    service = start(tls_client_ca=authority.ca, tls_client_auth="required")
    known = authority.client("billing")
    stranger = Authority(tmp_path / "another").client("billing")
    with Admin(service.url, ca=authority.ca, cert=known.cert, key=known.key) as admin:
        admin.create_topic("orders")
    for options in ({}, {"cert": stranger.cert, "key": stranger.key}):
        with pytest.raises(DeltaMQError), Producer(service.url, ca=authority.ca, timeout_s=1, **options) as producer:
            producer.send("orders", b"1")


def test_sec_27_certificates_are_replaced_under_load_without_a_failed_send(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    live = authority.server("live")
    service = start(server=live)
    port = int(service.url.rpartition(":")[2])
    first = ssl.get_server_certificate(("127.0.0.1", port))
    ended, sent, failures = threading.Event(), [0], []

    def load() -> None:
        while not ended.is_set():
            try:
                with Producer(service.url, ca=authority.ca, retries=0) as producer:
                    producer.send("orders", b"1")
                    sent[0] += 1
            except DeltaMQError as error:
                failures.append(error)

    worker = threading.Thread(target=load)
    worker.start()
    # A broken file first: the earlier one is used, and the log says so.
    kept = Path(live.cert).read_text()
    Path(live.cert).write_text("no certificate\n")
    log = tmp_path / "service.log"
    _until(lambda: "event=tls_files_refused" in log.read_text())
    assert ssl.get_server_certificate(("127.0.0.1", port)) == first
    Path(live.cert).write_text(kept)
    # The new certificate comes before its key, so that for a moment they do not fit.
    newer = authority.server("newer")
    shutil.copy(newer.cert, live.cert)
    _until(lambda: log.read_text().count("event=tls_files_refused") >= 2)
    shutil.copy(newer.key, live.key)
    _until(lambda: ssl.get_server_certificate(("127.0.0.1", port)) == Path(newer.cert).read_text())
    before = sent[0]
    _until(lambda: sent[0] > before + 2)
    ended.set()
    worker.join()
    assert failures == []


def test_sec_28_a_cancelled_pop_is_answered_over_tls(start: Start, authority: Authority) -> None:
    service = start()
    with Producer(service.url, ca=authority.ca) as producer:
        producer.send("orders", b"1")
    heard = threading.Event()
    consumer = PopConsumer(
        service.url, "billing", "orders", lambda _: heard.set() or Result.OK, wait_ms=20_000, ca=authority.ca
    )
    consumer.start()
    assert heard.wait(60)
    # Its next pop waits for up to 20 s, which the end of the consumer must not.
    port = int(service.url.rpartition(":")[2])
    _until(lambda: _waiting_pops(port, authority) == 1)
    assert consumer.close(timeout_s=60)
    assert _waiting_pops(port, authority) == 0
    with Producer(service.url, ca=authority.ca) as producer:
        producer.send("orders", b"2")
    popped: list[bytes] = []
    done = threading.Event()
    with PopConsumer(
        service.url,
        "billing",
        "orders",
        lambda one: popped.append(one.body) or done.set() or Result.OK,
        invisible_ms=60_000,
        ca=authority.ca,
    ):
        assert done.wait(30), "the cancelled pop took nothing that others must wait for"
    assert popped == [b"2"]


def test_sec_29_processes_speak_tls_to_each_other(start: Start, authority: Authority) -> None:
    settings = {"tls_client_ca": authority.ca, "tls_client_auth": "required"}
    one = start("--broker", "broker-a", **settings)
    start("--broker", "broker-b", **settings)
    client = authority.client("admin")
    with Admin(one.url, ca=authority.ca, cert=client.cert, key=client.key) as admin:
        _until(lambda: all(broker.online for broker in admin.cluster().brokers))
        assert {host.address.partition(":")[0] for host in admin.cluster().hosts} == {"https"}
        admin.create_topic("orders", partitions=2)
        # All through the first process: it forwards what the second one must answer.
        for partition in ("orders@broker-a", "orders@broker-b"):
            path = "/v1/topics/orders/messages"
            body = json.dumps({"messages": [{"body": "x", "partition": partition}]}).encode()
            answer = run_now(admin.hosts.call("POST", path, headers={"Content-Type": "application/json"}, body=body))
            assert json.loads(answer.body)["ranges"][0]["partition"] == partition
            assert answer.headers["x-content-type-options"] == "nosniff", "once, also if two processes answered"
        assert sum(one.max_offset or 0 for one in admin.get_topic("orders").partitions) == 2


def test_sec_25_wrong_settings_of_tls_end_the_start_with_a_reason(tmp_path: Path, authority: Authority) -> None:
    from deltamq.api.command import serve_command

    pair, other = authority.server(), authority.client("x")
    for settings, told in (
        ({"TLS_CERT": str(tmp_path / "none.pem")}, "none.pem"),
        ({"TLS_CERT": pair.cert, "TLS_KEY": other.key}, "service.tls_cert"),
        ({"TLS_KEY": pair.key}, "service.tls_cert"),
        ({"TLS_CERT": pair.cert, "TLS_KEY": pair.key, "TLS_CLIENT_AUTH": "required"}, "service.tls_client_ca"),
        ({"TLS_CERT": pair.cert, "TLS_KEY": pair.key, "TLS_CLIENT_CA": authority.ca}, "service.tls_client_auth"),
    ):
        environ = {f"DELTAMQ_SERVICE_{name}": value for name, value in settings.items()}
        flags = ["--warehouse", str(tmp_path / "w"), "--port", "0"]
        result = CliRunner(env=environ).invoke(serve_command, flags)
        assert result.exit_code == 1 and told in result.output, result.output


def _until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def _waiting_pops(port: int, authority: Authority) -> int:
    with Admin(f"https://127.0.0.1:{port}", ca=authority.ca) as admin:
        text = run_now(admin.hosts.call("GET", "/metrics")).body.decode()
    [line] = [line for line in text.splitlines() if line.startswith("deltamq_waiting_pops ")]
    return round(float(line.rpartition(" ")[2]))
