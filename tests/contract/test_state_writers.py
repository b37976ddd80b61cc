"""Other engines at our state tables: what they change does not count, and is taken back (SPEC TABLE-5).

`deltalake` plays both engines here: the merge job, which signs, and another, which does not. Spark does in
`tests/spark/test_foreign_writers.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake

from deltamq.tables.state.signature import signature
from deltamq.tables.state.table import StateLog, read_state, read_state_log, state_version
from deltamq.tables.state.taken_back import is_whole, take_back
from deltamq.tables.store.local import LocalStore

FOLDER = "state/numbers"
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Table:
    """A state table with the numbers 0 to 4, each in a commit of the merge job."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.path = folder / FOLDER
        for number in range(5):
            self.merge(number)

    def merge(self, number: int, *, after: int | None = None) -> None:
        """Commit as the merge job does, which has looked at everything there is, or up to `after`."""
        seen = state_version(self.store, FOLDER) if after is None else after
        properties = CommitProperties(
            app_transactions=[Transaction("mq.merge.numbers", number)],
            custom_metadata={"userMetadata": signature(seen)},
        )
        self.write(number, properties)

    def write(self, number: int, properties: CommitProperties | None = None) -> None:
        rows = pa.table({"n": [number], "text": [str(number)]}, schema=SCHEMA)
        write_deltalake(str(self.path), rows, mode="append", commit_properties=properties)

    @property
    def other(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    @property
    def log(self) -> StateLog:
        found = read_state_log(self.store, FOLDER)
        assert found is not None
        return found

    def numbers(self) -> list[int]:
        """What a start of the service reads."""
        state = read_state(self.store, FOLDER, SCHEMA)
        assert state is not None
        return sorted(state.rows.column("n").to_pylist())

    def mapped(self) -> None:
        """Commit what a Spark session does that sets `delta.columnMapping.mode`."""
        metadata = {**self.log.metadata, "configuration": {"delta.columnMapping.mode": "name"}}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"]}
        info = {"engineInfo": "Apache-Spark/4.2.0", "operation": "SET TBLPROPERTIES", "timestamp": 1}
        lines = ({"commitInfo": info}, {"metaData": metadata}, {"protocol": protocol})
        path = self.path / "_delta_log" / f"{state_version(self.store, FOLDER) + 1:020d}.json"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


OTHER = pa.table({"m": ["x"]})
CHANGES: dict[str, Callable[[Table], object]] = {
    "delete": lambda table: table.other.delete("n < 3"),
    "restore": lambda table: table.other.restore(1),
    "insert": lambda table: table.write(99),
    "overwrite": lambda table: write_deltalake(
        str(table.path), pa.table({"m": ["x"]}), mode="overwrite", schema_mode="overwrite"
    ),
    "a column": lambda table: table.other.alter.add_columns([Field("more", "string")]),
    "column mapping": lambda table: table.mapped(),
}


@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "in a checkpoint of its own"])
@pytest.mark.parametrize("what", CHANGES)
def test_table_05_what_another_engine_changed_does_not_count_and_is_taken_back(
    table: Table, what: str, checkpoint: bool, caplog: pytest.LogCaptureFixture
) -> None:
    CHANGES[what](table)
    if checkpoint and what != "column mapping":
        table.other.create_checkpoint()
    assert table.numbers() == [0, 1, 2, 3, 4]
    assert "event=state_table_changed table=state/numbers by='version 5: " in caplog.text
    found = table.log
    assert (found.version, found.newest, dict(found.transactions)) == (4, 5, {"mq.merge.numbers": 4})
    take_back(table.store, FOLDER, found, {}, 1)
    assert (table.log.version, table.log.foreign) == (6, "") and table.numbers() == [0, 1, 2, 3, 4]
    assert sorted(table.other.to_pyarrow_table().column("n").to_pylist()) == [0, 1, 2, 3, 4], "others see it, too"
    table.merge(5)
    assert table.numbers() == [0, 1, 2, 3, 4, 5]


def test_table_05_what_changes_no_row_counts_as_nothing(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    table.other.optimize.compact()
    table.other.alter.set_table_description("ours")
    table.other.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert table.numbers() == [0, 1, 2, 3, 4] and table.log.foreign == ""
    assert "state_table_changed" not in caplog.text
    table.merge(5)
    assert table.numbers() == [0, 1, 2, 3, 4, 5]


def test_table_05_a_merge_that_did_not_know_of_the_change_does_not_make_it_count(table: Table) -> None:
    """The other engine committed while the job wrote: the job's own records are merged once more afterwards."""
    table.other.delete("n < 3")
    table.merge(5, after=4)
    found = table.log
    assert (found.version, found.newest) == (4, 6) and table.numbers() == [0, 1, 2, 3, 4]
    assert (found.transactions, found.all_transactions) == ({"mq.merge.numbers": 4}, {"mq.merge.numbers": 5})
    take_back(table.store, FOLDER, found, {"mq.merge.numbers": 6}, 1)
    assert table.numbers() == [0, 1, 2, 3, 4] and table.log.transactions == {"mq.merge.numbers": 6}


def test_table_05_a_checkpoint_behind_the_change_does_not_hide_it(table: Table) -> None:
    table.other.create_checkpoint()
    table.other.delete("n < 3")
    table.merge(5, after=4)
    table.other.create_checkpoint()
    assert table.numbers() == [0, 1, 2, 3, 4]


def test_table_05_what_another_engine_has_destroyed_is_told(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    table.other.delete("n < 3")
    table.other.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    found = table.log
    assert not is_whole(table.store, FOLDER, found)
    with caplog.at_level(logging.ERROR):
        take_back(table.store, FOLDER, found, {"mq.merge.numbers": 5}, 1)
    assert "loss='rows are lost that the logs do not have any more'" in caplog.text
    assert table.numbers() == [3, 4] and table.log.transactions == {"mq.merge.numbers": 5}


def test_table_05_a_change_that_is_behind_every_checkpoint_is_told_once_and_kept(table: Table) -> None:
    table.other.delete("n < 3")
    table.other.create_checkpoint()
    for version in range(5):
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()
    found = table.log
    assert "DELETE" in found.foreign and not is_whole(table.store, FOLDER, found)
    take_back(table.store, FOLDER, found, {}, 1)
    assert table.numbers() == [3, 4] and table.log.foreign == ""
