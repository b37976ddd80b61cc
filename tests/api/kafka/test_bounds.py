"""Many clients that do nothing, and clients that do not read: what they hold is bounded (SPEC KAFKA-6)."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.api.kafka.messages.cluster_messages import MetadataRequest
from deltamq.api.kafka.messages.log_messages import FetchPartition, FetchRequest, FetchTopic
from deltamq.mq.limits import MIB
from tests.api.guarded import guarded
from tests.api.kafka.door import kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until
from tests.certificates import Authority
from tests.free_ports import free_port

CLIENTS = 3_000
#: Connections that other processes hold open: half of them each.
HELD = 10_000
HOLDER = """
import socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("open", flush=True)
sys.stdin.read()
"""
#: Most bytes that one idle connection takes in the process, its client's end in the test included.
IDLE_BYTES_MAX = 128 * 1024


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def files():
    """Enough open files for both ends of the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(3 * CLIENTS, HELD + 2_000)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip("the machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "count"), [("plain", CLIENTS), ("known", CLIENTS // 3)])
def test_kafka_06_thousands_of_idle_connections_take_little_and_do_no_harm(tmp_path, files, kind, count) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "plain":
            port, ca = stack.enter_context(kafka_running(tmp_path)).port, None
        else:  # each has TLS, and has said who it is
            authority, port = Authority(tmp_path / "tls"), free_port()
            pair, ca = authority.server(), authority.ca
            tls = {"tls_cert": pair.cert, "tls_key": pair.key}
            admin = stack.enter_context(guarded(tmp_path / "w", ca=ca, kafka_port=port, **tls))
            admin.put_principal("many")
            admin.rule("many", "topic", "*", "describe")
            key = admin.key("many")["key"]

        def connected() -> RawClient:
            client = stack.enter_context(RawClient(port, ca))
            assert kind == "plain" or client.plain("many", key).error_code == 0
            return client

        clients = [connected() for _ in range(100)]  # what the first ones need, others share
        before = _resident_bytes()
        clients += [connected() for _ in range(count - len(clients))]
        each = (_resident_bytes() - before) / count
        print(f"{each / 1024:.1f} KiB for each connection")
        assert each < IDLE_BYTES_MAX, f"{each / 1024:.0f} KiB for each connection"
        began = time.monotonic()
        assert connected().ask(MetadataRequest(topics=None)).brokers
        assert time.monotonic() - began < 15
        for one in clients[:: count // 5]:
            assert one.ask(MetadataRequest(topics=None)).brokers, "and none was closed"


@contextlib.contextmanager
def _holding(port: int, count: int) -> Iterator[None]:
    """Another process holds so many connections open, and says nothing on them."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(port), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            yield
        finally:
            process.kill()


@pytest.mark.long
def test_kafka_06_ten_thousand_idle_connections_leave_the_others_served(tmp_path, files, topic) -> None:
    with kafka_running(tmp_path, connections_max=HELD + 100) as kafka, contextlib.ExitStack() as stack:
        kafka.api.put_topic(topic, partitions=1)
        before = _resident_bytes()
        for _ in range(2):
            stack.enter_context(_holding(kafka.port, HELD // 2))
        until(lambda: len(os.listdir("/proc/self/fd")) > HELD)
        each = (_resident_bytes() - before) / HELD
        print(f"{each / 1024:.1f} KiB for each connection")
        assert each < IDLE_BYTES_MAX
        with RawClient(kafka.port) as client:
            began = time.monotonic()
            assert client.ask(MetadataRequest(topics=None)).brokers
            assert kafka.api.send(topic, "x").status == 200
            assert client.ask(_fetch(topic)).topics[0].partitions[0].records
            assert time.monotonic() - began < 15


def _fetch(topic: str) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=64 * MIB)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=64 * MIB, topics=[FetchTopic(name=topic, partitions=[wanted])]
    )


@pytest.mark.long
def test_kafka_06_clients_that_never_read_hold_a_bounded_part_and_are_cut_off(tmp_path, topic) -> None:
    limit = 64 * MIB  # the least that may be set
    with kafka_running(tmp_path, answer_bytes_max=limit) as kafka:
        kafka.api.put_topic(topic, partitions=1)
        for _ in range(8):
            assert kafka.api.send(topic, *["x" * MIB] * 2).status == 200
        answers = kafka.api.service.answers
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(RawClient(kafka.port)) for _ in range(40)]
            before = _resident_bytes()
            for client in silent:
                client.socket.settimeout(0.2)
                with contextlib.suppress(TimeoutError):
                    for _ in range(20):
                        client.send(_fetch(topic))
            most, seen = 0, 0
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                seen = max(seen, answers.bytes)
                most = max(most, _resident_bytes() - before)
                with RawClient(kafka.port) as other:
                    assert other.ask(MetadataRequest(topics=None)).brokers
                time.sleep(0.05)
            assert 0 < seen <= limit
            assert most < 6 * limit, f"{most / MIB:.0f} MiB"
            until(lambda: not answers.bytes and not answers.requests, 120)
            with RawClient(kafka.port) as other:
                assert other.ask(_fetch(topic)).topics[0].partitions[0].records
