"""Spark's `format("kafka")` against the Kafka door (SPEC KAFKA-3, 4): its batches, its stream, and a restart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq import Admin
from tests.api.kafka.door import stored_messages
from tests.e2e.service_process import ServiceProcess
from tests.free_ports import free_port
from tests.java import SPARK_KAFKA, fetched

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

_HALF = 500


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The Kafka door of a service, and its URL."""
    port = free_port()
    service = ServiceProcess(tmp_path / "warehouse", "--kafka-port", str(port))
    try:
        with Admin(service.url) as admin:
            admin.create_topic("numbers", partitions=3)
            admin.create_topic("copies", partitions=2)
        yield f"127.0.0.1:{port}", service.url
    finally:
        service.close()


def _run(servers: str, folder: Path, first: int, last: int) -> dict[str, list[Any]]:
    """Run the application in a process of its own, and return the rows that it found."""
    command = [sys.executable, "-m", "tests.spark.kafka_application", servers, str(folder / "unused")]
    jars = fetched(SPARK_KAFKA)
    command += [str(folder / "checkpoint"), str(first), str(last), *map(str, jars)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_kafka_04_sparks_kafka_source_and_sink_go_on_after_a_restart(address, tmp_path) -> None:
    servers, url = address
    _run(servers, tmp_path, 0, _HALF)
    found = _run(servers, tmp_path, _HALF, 2 * _HALF)
    wanted = [[number, str(-number), [["number", str(number)]]] for number in range(2 * _HALF)]
    for topic in ("numbers", "copies"):
        assert [[value, key, headers] for value, _, _, key, headers in found[topic]] == wanted
        stored = {place: int(one.text) for place, one in stored_messages(url, topic).items()}
        assert stored == {(partition, offset): value for value, partition, offset, *_ in found[topic]}
