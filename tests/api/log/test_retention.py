"""Retention, which works in another process, as clients of a service meet it (SPEC RETRY-6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from deltamq.tables.config import Config
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from tests.api.running import Api, config_for, running, until

TOPIC, PARTITION = "orders", "orders@broker-a"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    found = config_for(tmp_path)
    return replace(found, log=replace(found.log, file_keep_ms=1))


@pytest.fixture
def ten(config: Config) -> Iterator[Api]:
    """A service with ten messages, each in a file of its own."""
    with running(config) as api:
        api.put_topic(TOPIC, partitions=1)
        for i in range(10):
            assert api.send(TOPIC, str(i)).status == 200
        yield api


@pytest.fixture
def other(ten: Api, config: Config) -> Iterator[PartitionLog]:
    """The partition, open in the process of the jobs."""
    warehouse = Warehouse.open(config.warehouse.uri, settings=config.log)
    yield warehouse.open_partition(PartitionRef(Space.TOPICS, TOPIC, PARTITION))
    warehouse.close()


def told(api: Api, offset: int) -> tuple[str, int, int]:
    answer = api.fetch(TOPIC, PARTITION, f"?offset={offset}").json
    return answer["status"], answer["min_offset"], answer["next_offset"]


def test_retry_6_a_consumer_below_the_minimum_offset_is_told_the_new_one(ten: Api, other: PartitionLog) -> None:
    other.delete_below(6)
    assert ten.send(TOPIC, "10").status == 200, "an append sees what others committed"
    assert told(ten, 5) == ("offset_too_small", 6, 6)
    answer = ten.fetch(TOPIC, PARTITION, "?offset=6").json
    assert [m["body"] for m in answer["messages"]] == ["6", "7", "8", "9", "10"]


def test_retry_6_a_topic_whose_messages_are_all_gone_goes_on_at_its_end(ten: Api, other: PartitionLog) -> None:
    other.delete_below(10)
    # A read at the end makes the service look, at most every `refresh_ms`.
    until(lambda: told(ten, 10) == ("no_new_message", 10, 10))
    assert told(ten, 0) == ("offset_too_small", 10, 10)
    placed = ten.send(TOPIC, "10").json
    assert placed["ranges"][0]["base_offset"] == 10
    assert [m["body"] for m in ten.fetch(TOPIC, PARTITION, "?offset=10").json["messages"]] == ["10"]


def test_retry_6_the_minimum_offset_moves_where_nobody_writes_or_reads(ten: Api, other: PartitionLog) -> None:
    ten.service.partitions.tending.every_s = 0.0
    other.delete_below(4)
    until(lambda: ten.partitions(TOPIC)[PARTITION]["min_offset"] == 4)
    assert told(ten, 0) == ("offset_too_small", 4, 4)


def test_what_a_quiet_partition_let_go_is_deleted(config: Config, ten: Api, other: PartitionLog) -> None:
    """The last roll-up's files used to stay until the next message came."""
    ten.service.partitions.tending.every_s = 0.0
    for i in range(10, 40):
        assert ten.send(TOPIC, str(i)).status == 200
    until(lambda: ten.partitions(TOPIC)[PARTITION]["files"] < 40)
    other.refresh()

    def only_live_files() -> bool:
        other.refresh()
        return {path.name for path in Path(other.location).glob("*.parquet")} == {file.path for file in other.files}

    until(only_live_files)
