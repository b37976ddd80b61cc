"""Tables with features of a later release: readers and writers are told apart, and refused by name (SPEC META-9)."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest

from deltamq.mq.errors import Unavailable
from deltamq.tables.delta.actions import encode_guard
from deltamq.tables.delta.creation import create_table
from deltamq.tables.delta.protocol import MESSAGE_PROTOCOL
from deltamq.tables.log.follow import LogFollower
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import META_PARTITION, MetaLog
from deltamq.tables.schema import DELTA_SCHEMA
from deltamq.tables.settings import LogSettings
from tests.rows import REF, all_bodies, batch, numbered_bodies

_WRITER: dict[str, object] = {"writerFeatures": ["appendOnly", "invariants", "deltamq", "deltamq-next"]}
READERS: dict[str, dict[str, object]] = {
    "a reader feature": {"minReaderVersion": 3, "readerFeatures": ["deltamq-next"], **_WRITER},
    "a reader version": {"minReaderVersion": 4},
}


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    opened = Warehouse.open(str(tmp_path))
    yield opened
    opened.close()


def newer_table(warehouse: Warehouse, protocol: dict[str, object]) -> None:
    create_table(
        warehouse.store,
        REF.folder,
        schema=DELTA_SCHEMA,
        name=REF.name,
        configuration={"mq.topic": REF.topic, "mq.partition": REF.name},
        protocol={**MESSAGE_PROTOCOL, **protocol},
        now_ms=1,
    )


def checkpointed(folder: Path, monkeypatch: pytest.MonkeyPatch, protocol: dict[str, object]) -> PartitionLog:
    """A table of which a later release has stored a checkpoint, as a process that starts then opens it."""
    later = Warehouse.open(str(folder), settings=LogSettings(checkpoint_commits=2))
    log = later.create(REF)
    for body in numbered_bodies("m", 3):
        log.append([batch(body)])
    with monkeypatch.context() as patch:
        for name, value in protocol.items():
            patch.setitem(cast(MutableMapping[str, Any], MESSAGE_PROTOCOL), name, value)
        log.maintain()
    assert log.state.checkpoint_version == log.version
    later.close()
    return Warehouse.open(str(folder)).open_partition(REF)


def refused(log: PartitionLog) -> None:
    """The log takes nothing, by name, and says that nothing is stored."""
    before = log.version
    for write in (lambda: log.append([batch(b"x")]), lambda: log.fence("broker", 7)):
        with pytest.raises(Unavailable, match=r"writer feature 'deltamq-next'.*start the release") as error:
            write()
        assert (error.value.code, error.value.outcome) == ("table_newer", "not_stored")
    assert log.version == before and log.stopped is None


def test_meta_09_a_table_with_an_unknown_writer_feature_is_read_and_not_written(warehouse: Warehouse) -> None:
    newer_table(warehouse, _WRITER)
    log = warehouse.open_partition(REF)
    refused(log)
    assert all_bodies(log) == []


def test_meta_09_a_checkpoint_says_which_writer_features_a_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = checkpointed(tmp_path, monkeypatch, _WRITER)
    refused(log)
    assert all_bodies(log) == numbered_bodies("m", 3)


@pytest.mark.parametrize(("protocol", "reads"), [(_WRITER, True), ({"minReaderVersion": 4}, False)])
def test_meta_09_a_process_goes_by_the_features_that_a_later_release_gives_an_open_table(
    warehouse: Warehouse, protocol: dict[str, object], reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = warehouse.create(REF)
    log.append([batch(b"before")])
    with monkeypatch.context() as patch:
        for name, value in protocol.items():
            patch.setitem(cast(MutableMapping[str, Any], MESSAGE_PROTOCOL), name, value)
        metadata, version = log._log.snapshot.metadata, log.version + 1
        upgrade = encode_guard(
            table_id=log.table_id, version=version, batch_id="b" * 32, metadata=metadata, flushed=True, now_ms=1
        )
    warehouse.store.put_if_absent(log._log.key(version), upgrade.data, durable=True)
    if reads:
        log.refresh()
        refused(log)
        assert all_bodies(log) == [b"before"]
        return
    for _ in range(2):
        with pytest.raises(Unavailable, match="reader version 4") as error:
            log.append([batch(b"x")])
        assert error.value.outcome == "not_stored"


def test_meta_09_upkeep_leaves_a_table_with_an_unknown_writer_feature_alone(tmp_path: Path) -> None:
    warehouse = Warehouse.open(str(tmp_path), settings=LogSettings(checkpoint_commits=0, orphan_keep_ms=0))
    newer_table(warehouse, _WRITER)
    log, named_by_what_is_newer = warehouse.open_partition(REF), tmp_path / REF.folder / "index.parquet"
    named_by_what_is_newer.write_bytes(b"x")
    assert not log.maintain() and not log.clean() and log.due_in_ms() >= 0
    assert named_by_what_is_newer.exists() and log.state.checkpoint_version == -1
    warehouse.close()


@pytest.mark.parametrize("what", READERS)
def test_meta_09_a_table_with_an_unknown_reader_feature_is_not_opened(warehouse: Warehouse, what: str) -> None:
    newer_table(warehouse, READERS[what])
    for open_ in (
        lambda: warehouse.open_partition(REF),
        lambda: LogFollower(warehouse.store, REF.folder, clock=warehouse.clock),
    ):
        with pytest.raises(Unavailable, match=r"reader feature '(deltamq-next|reader version 4)'") as error:
            open_()
        assert error.value.code == "table_newer"


def test_meta_09_a_checkpoint_says_what_readers_must_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match=r"checkpoint.*reader feature 'reader version 4'"):
        checkpointed(tmp_path, monkeypatch, {"minReaderVersion": 4})


def test_meta_09_the_metadata_log_is_such_a_table(warehouse: Warehouse) -> None:
    create_table(
        warehouse.store,
        META_PARTITION.folder,
        schema=DELTA_SCHEMA,
        name=META_PARTITION.name,
        configuration={"mq.topic": META_PARTITION.topic, "mq.partition": META_PARTITION.name},
        protocol={**MESSAGE_PROTOCOL, **READERS["a reader feature"]},
        now_ms=1,
    )
    with pytest.raises(Unavailable, match="reader feature 'deltamq-next'"):
        MetaLog(warehouse)
