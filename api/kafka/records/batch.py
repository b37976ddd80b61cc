"""The frame of a record batch, version 2: what stands before its records, and the checks that need no record.

base offset  length  leader epoch  magic  CRC  |  attributes  last delta  times  producer  sequence  count  records
8            4       4             1      4    |  2           4           8 8    8 2       4         4
                                               '-- what the CRC-32C covers ------------------------------------->
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c

from deltamq.api.kafka.records.compression import Compression
from deltamq.api.kafka.records.varints import corrupt
from deltamq.mq.errors import Unprocessable

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = _HEADER.size
#: Bytes before the length, and the length itself.
_LENGTH_END: Final = 12
#: Where what the CRC covers begins.
_CRC_END: Final = 21
_MAGIC_AT: Final = 16
_MAGIC: Final = 2
_COMPRESSION: Final = 0x07
_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
NO_PRODUCER: Final = -1
#: The shortest record: a length, attributes, a time, an offset, no key, no value, no headers.
RECORD_BYTES_MIN: Final = 7
#: Flags of features that are not there.
_REFUSED: Final = {_TRANSACTIONAL: "transactions are not supported", _CONTROL: "clients write no control records"}

assert HEADER_BYTES == 61


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The checked header of one batch; `records` are as they came, perhaps compressed."""

    base_offset: int
    compression: Compression
    first_time_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    records: memoryview


def batches_of(data: bytes | memoryview) -> Iterator[BatchHeader]:
    """Yield the headers of batches that stand one after another.

    Raises
    ------
    Refused
        `corrupt_records`: a length, a count or a checksum is wrong.
    Unprocessable
        `unsupported_records`: the format is an older one (magic 0 or 1), a transaction's, or control records.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        if len(view) - at < _LENGTH_END:
            raise corrupt("a batch is cut off")
        length = int.from_bytes(view[at + 8 : at + _LENGTH_END], "big", signed=True)
        end = at + _LENGTH_END + length
        _check_magic(view[at:])
        if length < HEADER_BYTES - _LENGTH_END or end > len(view):
            raise corrupt(f"a batch says that it has {length} bytes, and {len(view) - at - _LENGTH_END} are there")
        yield _header(view[at:end])
        at = end


def _check_magic(batch: memoryview) -> None:
    magic = batch[_MAGIC_AT] if len(batch) > _MAGIC_AT else -1
    if magic in (0, 1):
        raise _unsupported(f"records have the old format {magic}; the client must write format 2 (Kafka 0.11)")
    if magic != _MAGIC:
        raise corrupt("a batch has no known format")


def _unsupported(detail: str) -> Unprocessable:
    return Unprocessable(f"records: {detail}", code="unsupported_records", field="records")


def _header(batch: memoryview) -> BatchHeader:
    (base, _, _, _, crc, attributes, last_delta, first_ms, _, producer, epoch, sequence, count) = _HEADER.unpack_from(
        batch
    )
    # The library takes bytes alone.
    if google_crc32c.value(bytes(batch[_CRC_END:])) != crc:
        raise corrupt("a checksum is wrong")
    for flag, why in _REFUSED.items():
        if attributes & flag:
            raise _unsupported(why)
    records = batch[HEADER_BYTES:]
    compression = attributes & _COMPRESSION
    if compression not in Compression.__members__.values():
        raise _unsupported(f"compression {compression} is not known")
    if count < 1 or last_delta != count - 1:
        raise corrupt(f"a batch of {count} records says that its last offset is {last_delta}")
    if compression == Compression.NONE and count * RECORD_BYTES_MIN > len(records):
        raise corrupt(f"{len(records)} bytes cannot hold {count} records")
    if producer >= 0 and (epoch < 0 or sequence < 0):
        raise corrupt("a producer has no epoch or no sequence")
    return BatchHeader(
        base_offset=base,
        compression=Compression(compression),
        first_time_ms=first_ms,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count,
        records=records,
    )


def pack_header(
    records: bytes | memoryview,
    *,
    base_offset: int,
    count: int,
    times_ms: tuple[int, int],
    compression: Compression = Compression.NONE,
    producer: tuple[int, int, int] = (NO_PRODUCER, -1, -1),
) -> bytes:
    """Return the header for records; `times_ms` are the first record's time and the latest, `producer` is its id,
    epoch and first sequence."""
    first_ms, latest_ms = times_ms
    length = HEADER_BYTES - _LENGTH_END + len(records)
    values = (int(compression), count - 1, first_ms, latest_ms, *producer, count)
    checked = _HEADER.pack(base_offset, length, 0, _MAGIC, 0, *values)[_CRC_END:]
    crc = google_crc32c.extend(google_crc32c.value(checked), bytes(records))
    return _HEADER.pack(base_offset, length, 0, _MAGIC, crc, *values)
