"""Description of a data file from its own content, for a log that lost the commit that named it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltamq.mq.errors import Corrupt
from deltamq.mq.producer import part_from_json
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.encode import PARTS_KEY, bounds_of, checksums, deliver_bounds, new_file
from deltamq.tables.delta.typed_stats import typed_bounds
from deltamq.tables.paths import start_of_data_file
from deltamq.tables.schema import MESSAGE_SCHEMA


def described_file(path: str, data: pa.Buffer) -> DataFile:
    """Describe a data file by its rows; the checksum of every page is checked.

    Raises
    ------
    Corrupt
        It is no complete file of messages, its offsets do not run on from the one in its name, or its footer is not of
        its rows.
    """
    try:
        start = start_of_data_file(path)
        batch_id = path[len(f"{start:020d}-") : -len(".parquet")]
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            rows = file.read(use_threads=False)
            typed = typed_bounds(rows)
            rows = rows.select(MESSAGE_SCHEMA.names).cast(MESSAGE_SCHEMA)
            crc = checksums(data, file.metadata)
            _check_requests(path, rows, start, file.metadata, is_whole=not batch_id.startswith("r"))
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise Corrupt(f"{path}: cannot be read: {error}") from error
    count = rows.num_rows
    if not count or not np.array_equal(rows.column("offset").to_numpy(), np.arange(start, start + count)):
        raise Corrupt(f"{path}: does not hold contiguous offsets from {start} on")
    described = new_file(
        start,
        count,
        born=bounds_of(rows.column("born_time")),
        append=bounds_of(rows.column("append_time")),
        deliver=deliver_bounds(rows.column("deliver_time")),
        typed=typed.stats(),
        size=data.size,
        crc=crc,
        batch_id=batch_id,
        now_ms=_ms(rows),
    )
    assert described.path == path, "a file's name is its first offset and its batch"
    return described


def _check_requests(path: str, rows: pa.Table, start: int, footer: pq.FileMetaData, *, is_whole: bool) -> None:
    """Raise `Corrupt` unless the footer has the requests of the rows: all if `is_whole`, as a roll-up drops old ones.

    Pages have checksums and a footer has none. A file that was written where a dead file of its size was, and not
    synced, may end in that file's footer: its requests would be forgotten, and stored twice when they are repeated.
    """
    stored = list(zip(rows.column("producer_id").to_pylist(), rows.column("producer_seq").to_pylist(), strict=True))
    told: list[tuple[str | None, int | None]] = [(None, None)] * len(stored)
    for part in map(part_from_json, json.loads((footer.metadata or {}).get(PARTS_KEY, b"[]"))):
        at = part.base_offset - start
        if not 0 <= at <= len(told) - part.count:
            raise Corrupt(f"{path}: its footer is that of another file")
        told[at : at + part.count] = [(part.producer_id, part.seq)] * part.count
    if any(said != row for said, row in zip(told, stored, strict=True) if is_whole or said[0] is not None):
        raise Corrupt(f"{path}: its footer is that of another file")


def _ms(rows: pa.Table) -> int:
    return bounds_of(rows.column("append_time"))[1] // 1_000
