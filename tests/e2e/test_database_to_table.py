"""From a table of PostgreSQL to a table here, without another process than Debezium's worker (SPEC TYPE-48).

    PostgreSQL --logical decoding--> Debezium in a worker of Connect --Avro, schemas in /schemas--> Kafka's port
        --> typed topic, whose fields are columns --> job `latest` --> the table as the source has it

Each part is killed, or stopped, and comes back, while rows change.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from deltamq import Admin
from deltamq.jobs.export.latest import latest
from deltamq.jobs.sql.views import register_views
from deltamq.tables.config import load
from tests.e2e.service_process import ServiceProcess
from tests.free_ports import free_port
from tests.java import CONNECT, DEBEZIUM, Java, JavaProgram
from tests.postgresql_server import PostgreSql, postgresql
from tests.queue_tables import with_spark_engine

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]

TOPIC = "shop.public.orders"
_CONVERTER = Path(__file__).parents[1] / "java" / "RegistryAvroConverter.java"
_PAGE = Path(__file__).parents[2] / "tables" / "typed" / "README.md"
_UNTIL_S = 240
_INVALID = 400

Row = dict[str, Any]


def until(condition: Callable[[], bool], worker: JavaProgram, what: Callable[[], object]) -> None:
    """Wait until a condition holds, while the worker runs."""
    end = time.monotonic() + _UNTIL_S
    while not condition():
        assert worker.is_running, worker.lines()[-20:]
        assert time.monotonic() < end, (what(), worker.lines()[-20:])
        time.sleep(0.2)


def _documented(kind: str) -> str:
    """Return the settings that the page of typed topics shows."""
    page = _PAGE.read_text(encoding="utf-8")
    section = page.partition("## From a database to a table")[2]
    return section.partition(f"```{kind}\n")[2].partition("```")[0]


class Source:
    """The table, and what it has."""

    def __init__(self, server: PostgreSql) -> None:
        self._server = server

    def do(self, *statements: str) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self) -> dict[int, Row]:
        with psycopg.connect(self._server.url) as connection:
            cursor = connection.execute("SELECT * FROM orders ORDER BY id")
            names = [column.name for column in cursor.description or ()]
            return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}


class Worker:
    """Connect's worker with the connector, whose state is in topics of the service."""

    def __init__(self, folder: Path, database_port: int, kafka: str, registry: str) -> None:
        classes = folder / "classes"
        classes.mkdir()
        self._java = Java(CONNECT, DEBEZIUM, heap="512m")
        self._java.compile(_CONVERTER, classes)
        self._url = f"http://127.0.0.1:{free_port()}"
        self._file = folder / "worker.properties"
        self._database_port = database_port
        settings = dict(line.split("=", 1) for line in _documented("properties").splitlines())
        settings |= {
            "bootstrap.servers": kafka,
            "value.converter": "RegistryAvroConverter",
            "value.converter.schema.registry.url": registry,
            "listeners": self._url,
            # sooner than users need it
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "only_scan",
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @contextmanager
    def running(self) -> Iterator[JavaProgram]:
        """Run it until the block ends."""
        program = self._java.start("org.apache.kafka.connect.cli.ConnectDistributed", str(self._file))
        try:
            until(self._has_connector, program, lambda: "the connector is not taken")
            yield program
        finally:
            program.stop()

    def _has_connector(self) -> bool:
        # The topic has a schema from its first message on: the converter registers it before Connect makes the topic.
        settings = json.loads(_documented("json"))
        settings |= {"database.port": str(self._database_port), "retriable.restart.connector.wait.ms": "1000"}
        url, body = f"{self._url}/connectors/shop/config", json.dumps(settings).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return bool(answer.status)
        except urllib.error.HTTPError as refused:
            assert refused.code != _INVALID, refused.read()
            return False
        except OSError:
            return False


def looked_up(service: ServiceProcess, ids: range) -> dict[int, Row]:
    """Return what the service has of these keys."""
    found = {}
    with Admin(service.url) as admin:
        if TOPIC not in admin.list_topics():
            return {}
        for id_ in ids:
            newest = admin.latest(TOPIC, json.dumps({"id": id_}, separators=(",", ":")))
            if newest is not None:
                fields = newest.fields
                found[id_] = {**fields, "amount": Decimal(fields["amount"])}
    return found


def without_nulls(rows: dict[int, Row]) -> dict[int, Row]:
    return {id_: {name: cell for name, cell in row.items() if cell is not None} for id_, row in rows.items()}


def test_type_48_a_table_of_a_database_is_a_table_here_whatever_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    port, kafka_port = free_port(), free_port()
    warehouse = tmp_path / "warehouse"
    with postgresql(port) as server:
        source = Source(server)
        source.do(
            "CREATE TABLE orders (id int PRIMARY KEY, item text, amount numeric(8, 2), paid boolean)",
            "INSERT INTO orders VALUES (1, 'tea', 2.5, true), (2, 'cups', 12, NULL)",
        )
        service = ServiceProcess(warehouse, "--kafka-port", str(kafka_port))
        worker = Worker(tmp_path, port, f"127.0.0.1:{kafka_port}", f"{service.url}/schemas")
        ids = range(100)

        def becomes_equal(program: JavaProgram) -> None:
            until(
                lambda: looked_up(service, ids) == without_nulls(source.rows()),
                program,
                lambda: (looked_up(service, ids), source.rows()),
            )

        def table() -> dict[int, Row]:
            settings = with_spark_engine(load(overrides={"warehouse.uri": str(warehouse)}))
            latest(spark, settings, datetime.now(UTC))
            # Not those that the session has: it may have views of other tests' topics.
            [view] = [name for name in register_views(spark, settings) if name.startswith("mq_latest_")]
            rows = spark.sql(f"SELECT * FROM `{view}`").collect()
            return {row.id: {name: row[name] for name in source.rows()[row.id]} for row in rows}

        try:
            with worker.running() as program:
                becomes_equal(program)
                source.do(
                    "INSERT INTO orders VALUES (3, 'pot', 30, false)",
                    "UPDATE orders SET item = 'kettle', amount = 31.25 WHERE id = 3",
                    "DELETE FROM orders WHERE id = 1",
                )
                becomes_equal(program)
                assert table() == source.rows()
                service.kill()
                source.do("INSERT INTO orders VALUES (4, 'spoon', 1, true)", "UPDATE orders SET paid = true")
                service.start()
                becomes_equal(program)
                program.kill()
            source.do("DELETE FROM orders WHERE id = 4", "INSERT INTO orders VALUES (5, 'fork', 99999.99, NULL)")
            with worker.running() as program:
                becomes_equal(program)
                source.do("ALTER TABLE orders ADD COLUMN note text")
                source.do("INSERT INTO orders VALUES (6, 'knife', 3, true, 'sharp')")
                becomes_equal(program)
                server.stop()
                server.start()
                source.do("UPDATE orders SET note = 'blunt' WHERE id IN (5, 6)")
                becomes_equal(program)
            assert table() == source.rows()
            with Admin(service.url) as admin:
                assert admin.get_topic(TOPIC).schema is not None
        finally:
            service.close()
