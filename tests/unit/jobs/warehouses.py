"""Warehouses with messages, made with `tables` alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import LogSettings

HEADERS = pa.map_(pa.string(), pa.string())


def rows(bodies: Sequence[bytes], *, key: str | None = "k", headers: dict[str, str] | None = None) -> pa.RecordBatch:
    """Return a producer's rows."""
    count = len(bodies)
    columns = {
        "key": pa.array([key] * count, pa.string()),
        "tag": pa.array(["TagA" if i % 2 == 0 else None for i in range(count)], pa.string()),
        "headers": pa.array([list(headers.items()) if headers else None] * count, HEADERS),
        "body": pa.array(bodies, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


class Filled:
    """A warehouse in a folder; `append` creates a partition that does not exist."""

    def __init__(self, folder: Path, *, rollup_files: int = 32, **settings: Any) -> None:
        self.uri = str(folder)
        self.warehouse = Warehouse.open(
            self.uri, settings=LogSettings(row_group_rows=4, rollup_files=rollup_files, **settings)
        )

    def append(self, topic: str, partition: str, *bodies: bytes, **columns: Any) -> PartitionLog:
        """Append the bodies in one commit."""
        log = self.warehouse.create(PartitionRef(Space.TOPICS, topic, partition))
        log.append([Batch(rows(bodies, **columns))])
        return log

    def close(self) -> None:
        """Close the tables."""
        self.warehouse.close()
