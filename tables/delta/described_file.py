"""Description of a data file from its own content, for a log that lost the commit that named it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.encode import bounds_of, checksums, deliver_bounds, new_file
from deltamq.tables.paths import start_of_data_file
from deltamq.tables.schema import MESSAGE_SCHEMA


def described_file(path: str, data: pa.Buffer) -> DataFile:
    """Describe a data file by its rows; the checksum of every page is checked.

    Raises
    ------
    Corrupt
        It is no complete file of messages, or its offsets do not run on from the one in its name.
    """
    try:
        start = start_of_data_file(path)
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            rows = file.read(use_threads=False).cast(MESSAGE_SCHEMA)
            crc = checksums(data, file.metadata)
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
        size=data.size,
        crc=crc,
        batch_id=path[len(f"{start:020d}-") : -len(".parquet")],
        now_ms=_ms(rows),
    )
    assert described.path == path, "a file's name is its first offset and its batch"
    return described


def _ms(rows: pa.Table) -> int:
    return bounds_of(rows.column("append_time"))[1] // 1_000
