"""One side's account of a topic: its content, duplicates and order as a few numbers that can be compared.

The accounts of producer and service are counted here, from rows. Spark counts its own in SQL (`queries.sql`), so that a
mistake in one way of counting shows as a disagreement.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

#: The rows that `account_of` counts: `partition`, `offset` and the fields of the message.
ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("body", pa.binary()),
    ]
)

Integers: TypeAlias = NDArray[np.int64]


class PartitionCount(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one partition, and whether every offset from 0 to the end occurs exactly once."""

    messages: int = 0
    dense: bool = True


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as seen by one side."""

    #: Messages by tag.
    kinds: dict[str, int]
    #: Counts by name of the partition.
    partitions: dict[str, PartitionCount]
    #: The sum of the CRC-32 of all bodies; it does not depend on their order.
    bodies_crc: int
    #: For each aircraft, the SHA-256 of its events' CRC-32, in order and joined by commas.
    sequences: dict[str, str]
    #: Aircraft whose events are in more than one partition.
    scattered: int

    @property
    def messages(self) -> int:
        """The number of all messages."""
        return sum(self.kinds.values())


def account_of(rows: pa.Table, *, ends: Mapping[str, int], in_row_order: bool) -> Account:
    """Return the account of `rows` (of `ROWS_SCHEMA`).

    Parameters
    ----------
    ends
        Each partition's end offset, as reported to this side.
    in_row_order
        Whether an aircraft's events are in the order of the rows (producer) or of the offsets (as stored).
    """
    assert rows.schema.equals(ROWS_SCHEMA), rows.schema
    crcs = body_crcs(rows["body"])
    names = list(ends)
    partition = pc.index_in(rows["partition"], pa.array(names, pa.string())).to_numpy().astype(np.int64)
    offset = rows["offset"].to_numpy()
    order = np.arange(len(rows)) if in_row_order else np.lexsort((offset, partition))
    return Account(
        kinds=_kinds(rows["tag"]),
        partitions={name: _count(offset[partition == at], ends[name]) for at, name in enumerate(names)},
        bodies_crc=int(crcs.sum()),
        sequences=_sequences(rows["key"], crcs, order),
        scattered=_scattered(rows["key"], partition),
    )


def body_crcs(bodies: pa.ChunkedArray) -> Integers:
    """Return the CRC-32 of each body."""
    return np.fromiter(map(zlib.crc32, bodies.to_pylist()), dtype=np.int64, count=len(bodies))


def _kinds(tags: pa.ChunkedArray) -> dict[str, int]:
    counted = tags.value_counts()
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def _count(offsets: Integers, end_offset: int) -> PartitionCount:
    return PartitionCount(messages=len(offsets), dense=np.array_equal(np.sort(offsets), np.arange(end_offset)))


def _sequences(keys: pa.ChunkedArray, crcs: Integers, order: Integers) -> dict[str, str]:
    """By key; rows without a key have no order."""
    coded = keys.combine_chunks().dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy()[order]
    by_key = np.argsort(codes, kind="stable")
    written = crcs[order][by_key].astype(str)
    starts = np.searchsorted(codes[by_key], np.arange(len(coded.dictionary) + 1))
    return {
        key: hashlib.sha256(",".join(written[start:stop]).encode()).hexdigest()
        for key, start, stop in zip(coded.dictionary.to_pylist(), starts[:-1], starts[1:], strict=True)
    }


def _scattered(keys: pa.ChunkedArray, partition: Integers) -> int:
    coded = keys.combine_chunks().dictionary_encode()
    keyed = coded.indices.is_valid().to_numpy(zero_copy_only=False)
    codes = coded.indices.fill_null(-1).to_numpy()[keyed].astype(np.int64)
    pairs = np.unique(np.stack([codes, partition[keyed]]), axis=1)
    return int((np.bincount(pairs[0], minlength=1) > 1).sum())
