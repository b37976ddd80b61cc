"""An independent witness: reads a Delta table's files with pyarrow and no code of this project.

It reads as the Delta protocol says: the newest checkpoint, then every commit after it; live files are those added and
not removed. It fails unless offsets are dense and end at the table's `mq.offset`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["Testimony", "testify"]


class Testimony(msgspec.Struct):
    """The contents of the files: rows by offset, the `mq.offset` transaction, live files."""

    version: int = -1
    end_offset: int = 0
    files: dict[str, int] = msgspec.field(default_factory=dict)
    rows: dict[int, dict[str, Any]] = msgspec.field(default_factory=dict)

    @property
    def bodies(self) -> dict[int, bytes]:
        """Return the bodies by offset."""
        return {offset: bytes(row["body"]) for offset, row in self.rows.items()}


def testify(table: Path, columns: tuple[str, ...] = ("offset", "message_id", "body")) -> Testimony:
    """Read the table in folder `table`; raises an AssertionError for each fault."""
    log = table / "_delta_log"
    found = Testimony()
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    if checkpoints:
        _checkpoint(checkpoints[-1], found)
    commits = {int(p.stem): p for p in log.iterdir() if re.fullmatch(r"\d{20}\.json", p.name)}
    for version in sorted(v for v in commits if v > found.version):
        assert version == found.version + 1, f"version {found.version + 1} is missing, {version} exists"
        _commit(commits[version], found)
        found.version = version
    _rows(table, columns, found)
    offsets = sorted(found.rows)
    if offsets:
        assert offsets == list(range(offsets[0], offsets[-1] + 1)), "offsets have holes"
        assert offsets[-1] + 1 == found.end_offset, f"last offset {offsets[-1]}, mq.offset {found.end_offset}"
    return found


def _checkpoint(path: Path, found: Testimony) -> None:
    found.version = int(path.name[:20])
    for row in pq.read_table(path).to_pylist():
        if row["add"]:
            found.files[row["add"]["path"]] = row["add"]["size"]
        if row["txn"] and row["txn"]["appId"] == "mq.offset":
            found.end_offset = row["txn"]["version"]


def _commit(path: Path, found: Testimony) -> None:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert lines, f"{path.name} is empty"
    for line in lines:
        if "add" in line:
            found.files[line["add"]["path"]] = line["add"]["size"]
        if "remove" in line:
            del found.files[line["remove"]["path"]]
        if "txn" in line and line["txn"]["appId"] == "mq.offset":
            assert line["txn"]["version"] >= found.end_offset, "mq.offset went back"
            found.end_offset = line["txn"]["version"]


def _rows(table: Path, columns: tuple[str, ...], found: Testimony) -> None:
    for name, size in found.files.items():
        path = table / name
        assert path.stat().st_size == size, f"{name}: {path.stat().st_size} bytes, the log says {size}"
        with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
            part: pa.Table = parquet.read(columns=list(columns))
        for row in part.to_pylist():
            assert row["offset"] not in found.rows, f"offset {row['offset']} stands twice"
            found.rows[row["offset"]] = row
