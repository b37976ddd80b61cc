"""Rows of a database that change become records: cases of ours for Debezium in a distributed worker of Connect."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from tests.free_ports import free_port
from tests.java import CONNECT
from tests.suites.broker import Broker
from tests.suites.cache import Cache
from tests.suites.java_suites import fetched_jars, jars, java
from tests.suites.mariadb import MariaDb, running_mariadb
from tests.suites.outcomes import Outcome
from tests.suites.playing import outcomes_of, running, until

__all__ = ["play_debezium"]

_DEBEZIUM: Final = jars(
    "debezium",
    "io.debezium:debezium-connector-mysql:3.6.1.Final",
    "com.github.luben:zstd-jni:1.5.6-10",
    # these are among the worker's
    without=("org.apache.kafka:*", "com.fasterxml.jackson.core:*", "at.yawk.lz4:*", "jakarta.ws.rs:*"),
)
_TOPIC: Final = "shop.shop.orders"
_CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"

_INVALID: Final = 400

#: What happened to a row, and the row before and after it.
Change = tuple[str, Any, Any]


def play_debezium(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play a worker that is stopped twice, once while rows change and once behind a change of their table."""
    path = ":".join(map(str, [*fetched_jars(cache, CONNECT), *fetched_jars(cache, _DEBEZIUM)]))
    seen: list[Change] = []

    def happens(*changes: Change) -> None:
        """The topic has what was there, then these."""
        seen.extend(changes)
        assert until(lambda: _changes(broker) if len(_changes(broker)) >= len(seen) else None, worker) == seen

    def rows_that_are_there_are_read() -> None:
        happens(("r", None, _row(1, "tea", "2.50")), ("r", None, _row(2, "cups", "12.00")))

    def changes_come_in_their_order() -> None:
        database.sql(
            "insert into shop.orders values (3, 'pot', 30); update shop.orders set item = 'kettle' where id = 3"
        )
        database.sql("delete from shop.orders where id = 1")
        pot, kettle = _row(3, "pot", "30.00"), _row(3, "kettle", "30.00")
        happens(("c", None, pot), ("u", pot, kettle), ("d", _row(1, "tea", "2.50"), None), ("tombstone", 1, None))

    def what_changes_while_the_worker_is_stopped_comes_once() -> None:
        happens(*(("c", None, _row(number, "spoon", "1.00")) for number in range(10, 30)))

    def a_table_that_changed_is_known() -> None:
        database.sql(
            "alter table shop.orders add column note varchar(20); insert into shop.orders values (40,'a',1,'b')"
        )
        happens(("c", None, {**_row(40, "a", "1.00"), "note": "b"}))

    def a_table_that_changed_is_known_after_a_stop() -> None:
        happens(("c", None, {**_row(41, "c", "2.00"), "note": "d"}))

    with running_mariadb(cache, log) as database:
        database.sql(
            "create database shop;"
            "create table shop.orders (id int primary key, item varchar(40), amount decimal(8,2));"
            "insert into shop.orders values (1, 'tea', 2.5), (2, 'cups', 12)"
        )
        with _connect(path, broker, database, log) as worker:
            yield from outcomes_of(_named(rows_that_are_there_are_read, changes_come_in_their_order), log, pattern)
        database.sql("".join(f"insert into shop.orders values ({number}, 'spoon', 1);" for number in range(10, 30)))
        with _connect(path, broker, database, log) as worker:
            later = (what_changes_while_the_worker_is_stopped_comes_once, a_table_that_changed_is_known)
            yield from outcomes_of(_named(*later), log, pattern)
        database.sql("insert into shop.orders values (41, 'c', 2, 'd')")
        with _connect(path, broker, database, log) as worker:
            yield from outcomes_of(_named(a_table_that_changed_is_known_after_a_stop), log, pattern)


def _named(*cases: Any) -> dict[str, Any]:
    return {case.__name__.replace("_", " "): case for case in cases}


def _row(number: int, item: str, amount: str) -> dict[str, Any]:
    return {"id": number, "item": item, "amount": amount}


@contextlib.contextmanager
def _connect(path: str, broker: Broker, database: MariaDb, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker until the block ends; what it knows is in topics."""
    url, folder = f"http://127.0.0.1:{free_port()}", log.parent
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": "connect",
        "key.converter": _CONVERTER,
        "value.converter": _CONVERTER,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "offset.flush.interval.ms": "500",
        "listeners": url,
        "plugin.discovery": "only_scan",
        "offset.storage.partitions": "2",
        "status.storage.partitions": "1",
    }
    for kind in ("config", "offset", "status"):
        settings |= {f"{kind}.storage.topic": f"connect.{kind}", f"{kind}.storage.replication.factor": "1"}
    file = folder / "debezium.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-cp", path]
    command = [str(java()), *options, "org.apache.kafka.connect.cli.ConnectDistributed", str(file)]
    with running(command, cwd=folder, env=os.environ, log=log) as process:
        until(lambda: _put_connector(url, broker, database), process)
        yield process


def _put_connector(url: str, broker: Broker, database: MariaDb) -> int:
    history = "schema.history.internal.kafka"
    settings = {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "tasks.max": "1",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": database.user,
        "database.password": database.password,
        "database.server.id": "7",
        "topic.prefix": "shop",
        "database.include.list": "shop",
        "decimal.handling.mode": "string",
        f"{history}.bootstrap.servers": broker.address,
        f"{history}.topic": "shop.history",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }
    body, head = json.dumps(settings).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/connectors/shop/config", body, head, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        assert refused.code != _INVALID, refused.read()
        raise


def _changes(broker: Broker) -> list[Change]:
    """Return what the topic has, or nothing if there is none yet."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "enable.auto.commit": False})
    try:
        if _TOPIC not in consumer.list_topics(timeout=60).topics:
            return []
        _, end = consumer.get_watermark_offsets(TopicPartition(_TOPIC, 0), timeout=60)
        consumer.assign([TopicPartition(_TOPIC, 0, 0)])
        found: list[Change] = []
        while len(found) < end:
            for record in consumer.consume(100, 1):
                found.append(_change(record.key(), record.value()))
        return found
    finally:
        consumer.close()


def _change(key: bytes | None, value: bytes | None) -> Change:
    if value is None:
        assert key is not None
        return "tombstone", json.loads(key)["id"], None
    change = json.loads(value)
    return change["op"], change["before"], change["after"]
