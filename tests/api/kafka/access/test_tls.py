"""Clients of Kafka over TLS, and through several processes (SPEC KAFKA-11)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from deltamq.api.kafka.messages.cluster_messages import ApiVersionsRequest
from deltamq.api.kafka.messages.log_messages import ProducePartition, ProduceRequest, ProduceTopic
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.encode import encode_records
from deltamq.tables.config import ConfigInvalid, load
from deltamq.tables.config_sections import KafkaTls, Secret, TlsClientAuth
from tests.api.guarded import SECRET, guarded
from tests.api.kafka.access.callers import Door, consume, everything, send
from tests.api.kafka.raw_client import RawClient, framed
from tests.api.running import until
from tests.certificates import Authority
from tests.free_ports import free_port


def test_kafka_11_without_tls_a_client_is_not_spoken_to(door) -> None:
    with RawClient(door.port) as client:
        client.send(ApiVersionsRequest())
        assert client.is_closed(5)


def test_kafka_11_a_slow_handshake_holds_nobody_else(door) -> None:
    with socket.create_connection(("127.0.0.1", door.port)) as silent, door.raw() as client:
        assert client.ask(ApiVersionsRequest()).error_code == 0
        silent.close()


@pytest.mark.parametrize("farewell", [True, False])
def test_kafka_03_what_a_producer_sent_over_tls_before_it_went_is_stored(door, topic, farewell) -> None:
    door.admin.put_topic(topic, partitions=1)
    records = Records(pa.nulls(1, pa.binary()), pa.array([b"x"]), None, np.full(1, 1_700_000_000_000, np.int64))
    batch = encode_records(records, base_offset=0)
    append = ProduceRequest(None, 0, 20_000, [ProduceTopic(name=topic, partitions=[ProducePartition(0, batch)])])
    with door.caller(topic, *everything(topic)).raw() as client:
        client.socket.sendall(framed(append)[1] * 300)
        if farewell:
            with contextlib.suppress(OSError):  # the service does not wait for ours
                client.socket.unwrap()
    until(lambda: door.admin.stored(topic) == {f"{topic}@broker-a": 300})


def test_sec_18_handshakes_under_way_at_the_kafka_port_count_against_the_limit_of_connections(tmp_path) -> None:
    authority, port, limit = Authority(tmp_path / "tls"), free_port(), 4
    pair = authority.server()
    tls = {"tls_cert": pair.cert, "tls_key": pair.key}
    with contextlib.ExitStack() as opened:

        def silent() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))

        def answered() -> RawClient | None:
            try:
                client = opened.enter_context(RawClient(port, authority.ca))
                return client if client.ask(ApiVersionsRequest()).error_code == 0 else None
            except OSError:
                return None

        with guarded(tmp_path / "w", ca=authority.ca, kafka_port=port, connections_max=limit, **tls):
            waiting = [silent() for _ in range(limit)]
            assert _is_cut(silent()), "one too many"
            assert answered() is None
            waiting[0].close()
            until(answered)
            assert _is_cut(silent()), "made connections and handshakes count together"
        assert all(map(_is_cut, waiting[1:])), "a service that stops waits for none of them"


def _is_cut(plain: socket.socket) -> bool:
    """Whether the service closes a connection on which nothing was sent, without a byte."""
    try:
        return plain.recv(1) == b""
    except ConnectionResetError:
        return True


def test_kafka_11_certificates_of_clients_may_be_asked_for_and_the_services_own_replaced(tmp_path, topic) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    pair, client = authority.server(), authority.client("billing")
    port = free_port()
    with guarded(
        tmp_path / "warehouse",
        ca=authority.ca,
        kafka_port=port,
        tls_cert=pair.cert,
        tls_key=pair.key,
        tls_client_ca=authority.ca,
        tls_client_auth=TlsClientAuth.OPTIONAL,
    ) as admin:
        door = Door(admin, port, authority.ca)
        admin.put_topic(topic, partitions=1)
        caller = door.caller(topic, *everything(topic))
        shown = {"ssl.certificate.location": client.cert, "ssl.key.location": client.key}
        send(caller.settings(**shown), topic, "one")
        stranger = other.client("billing")
        wrong = {"ssl.certificate.location": stranger.cert, "ssl.key.location": stranger.key}
        with pytest.raises(KafkaException):
            send(caller.settings(**wrong, **{"message.timeout.ms": 1_000, "log_level": 0}), topic, "two")
        replaced = authority.server("again")
        for now, then in ((pair.cert, replaced.cert), (pair.key, replaced.key)):
            shutil.copyfile(then, now)
        serial = ssl.PEM_cert_to_DER_cert(Path(replaced.cert).read_text())

        def shown_now() -> bytes | None:
            with door.raw() as raw:
                return raw.socket.getpeercert(True)

        until(lambda: shown_now() == serial)
        send(caller.settings(**shown), topic, "three")
        assert admin.stored(topic) == {f"{topic}@broker-a": 2}


def test_kafka_11_one_port_serves_clients_with_tls_and_without(tmp_path, topic) -> None:
    authority, port = Authority(tmp_path / "tls"), free_port()
    pair = authority.server()
    more = {"kafka_tls": KafkaTls.OPTIONAL, "host": "0.0.0.0", "kafka_address": f"{_elsewhere()}:{port}"}
    with guarded(
        tmp_path / "w", ca=authority.ca, kafka_port=port, tls_cert=pair.cert, tls_key=pair.key, **more
    ) as admin:
        door = Door(admin, port, authority.ca)
        admin.put_topic(topic, partitions=1)
        caller = door.caller(topic, *everything(topic))
        plain = {"security.protocol": "SASL_PLAINTEXT", "bootstrap.servers": f"{_elsewhere()}:{port}"}
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            send(caller.settings(mechanism, **plain), topic, f"plain by {mechanism}")
        with pytest.raises(KafkaException):  # it would show the key to everybody on the way
            send(caller.settings("PLAIN", **plain, **{"message.timeout.ms": 1_000, "log_level": 0}), topic, "shown")
        with door.raw() as raw:
            assert raw.plain(caller.name, caller.key).error_code == 0
        with RawClient(port) as silent:
            silent.socket.sendall(b"\x16")
            silent.socket.shutdown(socket.SHUT_WR)
            assert silent.is_closed(15)
        found = consume(caller.settings(**plain), topic, topic, 2)
        assert found == [b"plain by SCRAM-SHA-256", b"plain by SCRAM-SHA-512"]


def test_kafka_11_a_client_without_tls_cannot_show_the_certificate_that_it_must() -> None:
    files = {"service.tls_cert": "a.pem", "service.tls_client_ca": "ca.pem"}
    with pytest.raises(ConfigInvalid, match=r"service.kafka_tls.* must be required"):
        load(None, {**files, "service.tls_client_auth": "required", "service.kafka_tls": "optional"}, environ={})


def _elsewhere() -> str:
    """Return an address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("192.0.2.1", 9))  # nothing is sent
        return str(asking.getsockname()[0])


def test_sec_18_connections_without_tls_count_against_the_limit_before_their_first_byte(tmp_path) -> None:
    authority, port, limit = Authority(tmp_path / "tls"), free_port(), 2
    pair = authority.server()
    tls = {"tls_cert": pair.cert, "tls_key": pair.key, "kafka_tls": KafkaTls.OPTIONAL}
    with contextlib.ExitStack() as opened:

        def silent() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))

        def answered() -> bool:
            try:
                return opened.enter_context(RawClient(port)).ask(ApiVersionsRequest()).error_code == 0
            except OSError:
                return False

        with guarded(tmp_path / "w", ca=authority.ca, kafka_port=port, connections_max=limit, **tls):
            waiting = [silent() for _ in range(limit)]
            assert _is_cut(silent()), "one too many"
            waiting[0].close()
            until(answered)
        assert all(map(_is_cut, waiting[1:])), "a service that stops waits for none of them"


@pytest.mark.promise("PORT-4")
def test_kafka_11_what_one_process_stores_for_another_is_by_its_caller(tmp_path, topic) -> None:
    ports = [free_port(), free_port()]
    secret = Secret(SECRET)
    with (
        guarded(tmp_path / "w", brokers=("broker-a",), cluster_secret=secret, kafka_port=ports[0]) as a,
        guarded(tmp_path / "w", token=a.token, brokers=("broker-b",), cluster_secret=secret, kafka_port=ports[1]) as b,
    ):
        until(lambda: all(one.service.meta.now.brokers.available == ("broker-a", "broker-b") for one in (a, b)))
        until(lambda: b.service.hosting.hosts("broker-b"))
        a.put_topic(topic, partitions=2)
        a.put_principal(topic)
        for rule in everything(topic):
            a.rule(topic, *rule)
        made = a.key(topic)
        settings = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": topic,
            "sasl.password": made["key"],
            "partitioner": "random",
            "sticky.partitioning.linger.ms": 0,
        }
        send(settings, topic, *(f"m{number}" for number in range(40)))
        assert len(consume(settings, topic, topic, 40)) == 40
        ends = a.stored(topic)
        assert len(ends) == 2 and all(ends.values())
        for one in (a, b):
            offsets = one.call("GET", f"/v1/groups/{topic}/topics/{topic}/offsets").json["offsets"]
            assert offsets == ends
        # Only a process can name a principal: what says so itself is no key, proved or not.
        path = f"/v1/groups/{topic}/topics/{topic}/offsets"
        for more in ({}, {"Mq_Forwarded": a.service.hosting.id, "Mq_Proof": "1.00"}):
            forged = b.by(None).call("PUT", path, {"offsets": ends}, Mq_Caller=topic, **more)
            assert forged.status in (401, 403), forged
