"""The frame of a record batch, version 2: what stands before its records, the checks that need no record, compression.

    base offset  length  leader epoch  magic  CRC  |  attributes  last delta  times  producer  sequence  count  records
    8            4       4             1      4    |  2           4           8 8    8 2       4         4
                                                   '-- what the CRC-32C covers ------------------------------------->

Compressed records have a bound on what they may become:

    gzip, lz4 (frames), zstd   streams, read piece by piece until the bound
    snappy                     one raw block, or blocks in the framing of the library xerial, which Java clients write
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final

import google_crc32c
import msgspec
import pyarrow as pa

from deltamq.api.kafka.records.columns import corrupt
from deltamq.mq.errors import TooLarge, Unprocessable

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = _HEADER.size
#: Bytes before the length, and the length itself.
_LENGTH_END: Final = 12
#: Where the bytes begin that the CRC covers.
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
#: Flags of features that are not supported.
_REFUSED: Final = {_TRANSACTIONAL: "transactions are not supported", _CONTROL: "clients write no control records"}

assert HEADER_BYTES == 61


class Compression(enum.IntEnum):
    """How records are compressed, by its number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True):
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
    # The library takes only bytes.
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
    last_delta: int | None = None,
    is_control: bool = False,
) -> bytes:
    """Return the header for records; `times_ms` are the first record's time and the latest, `producer` is its id,
    epoch and first sequence. `last_delta` is the distance of the last offset, if there are gaps between offsets."""
    first_ms, latest_ms = times_ms
    length = HEADER_BYTES - _LENGTH_END + len(records)
    last_delta = count - 1 if last_delta is None else last_delta
    attributes = int(compression) | (_CONTROL if is_control else 0)
    values = (attributes, last_delta, first_ms, latest_ms, *producer, count)
    checked = _HEADER.pack(base_offset, length, 0, _MAGIC, 0, *values)[_CRC_END:]
    crc = google_crc32c.extend(google_crc32c.value(checked), bytes(records))
    return _HEADER.pack(base_offset, length, 0, _MAGIC, crc, *values)


def has_no_flags(batch: bytes | memoryview) -> bool:
    """Whether a batch's attributes are its compression alone."""
    return not int.from_bytes(batch[_CRC_END : _CRC_END + 2], "big") & ~_COMPRESSION


def with_offset(batch: bytes | memoryview, offset: int) -> bytes:
    """Return a batch whose records begin at this offset, of no leader's epoch; its checksum does not cover either."""
    return b"".join((offset.to_bytes(8, "big"), batch[8:_LENGTH_END], bytes(4), batch[_MAGIC_AT:]))


#: A control record that says "committed", without a time, at the first offset: consumers pass over it.
_COMMITTED: Final = bytes([2 * 16, 0, 0, 0, 2 * 4, 0, 0, 0, 1, 2 * 6, 0, 0, 0, 0, 0, 0, 0])


def gap_batch(start: int, end: int) -> bytes:
    """Return a batch that brings consumers from offset `start` to `end` and has nothing for them (SPEC KAFKA-25).

    It holds a control record, as partitions of Kafka do at the end of transactions: some clients take a batch without
    any record for one that is cut off, and ask for a larger one.
    """
    header = pack_header(
        _COMMITTED, base_offset=start, count=1, times_ms=(-1, -1), last_delta=end - 1 - start, is_control=True
    )
    return header + _COMMITTED


_XERIAL: Final = b"\x82SNAPPY\x00"
#: The magic and two version numbers of four bytes.
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_VERSIONS: Final = b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_PIECE_BYTES: Final = 256 * 1024
#: The head of a frame of blocks of at most 64 KiB that do not depend on each other, without checksums: Java's clients
#: read no others.
_LZ4_HEAD: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES: Final = 64 * 1024
#: In a block's length: the block is not compressed.
_LZ4_PLAIN: Final = 1 << 31
_LZ4_END: Final = bytes(4)


_STREAMS: Final = {Compression.GZIP: "gzip", Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}


def expanded(data: memoryview, by: Compression, bytes_max: int) -> memoryview:
    """Return the records without their compression.

    Raises
    ------
    Refused
        `corrupt_records`: the data is not compressed in this way.
    TooLarge
        The records would take more than `bytes_max`; no more than that was ever expanded.
    """
    if by is Compression.NONE:
        if len(data) > bytes_max:
            raise _too_large(bytes_max)
        return data
    try:
        if by is Compression.SNAPPY:
            return memoryview(_unsnapped(data, bytes_max))
        return memoryview(_streamed(data, _STREAMS[by], bytes_max))
    except (pa.ArrowInvalid, OSError) as error:
        raise corrupt(f"cannot be expanded by {by.name.lower()}") from error


def _streamed(data: memoryview, codec: str, bytes_max: int) -> bytes:
    pieces, total = [], 0
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
        while piece := stream.read(_PIECE_BYTES):
            total += len(piece)
            if total > bytes_max:
                raise _too_large(bytes_max)
            pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(bytes_max: int) -> TooLarge:
    detail = f"records: a batch takes more than {bytes_max} bytes when it is expanded"
    return TooLarge(detail, code="message_too_large", field="records", extra={"limit": bytes_max})


def _unsnapped(data: memoryview, bytes_max: int) -> bytes:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _block(data, bytes_max)
    blocks, at, left = [], _XERIAL_HEADER_BYTES, bytes_max
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size > len(data) - at:
            raise corrupt("a snappy block is cut off")
        blocks.append(_block(data[at : at + size], left, bytes_max))
        left -= len(blocks[-1])
        at += size
    return b"".join(blocks)


def _block(data: memoryview, left: int, bytes_max: int | None = None) -> bytes:
    """Expand one block, which begins with its expanded size."""
    size = shift = 0
    for at in range(5):
        byte = data[at] if at < len(data) else 0x80
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    else:
        raise corrupt("a snappy block has no size")
    if size > left:
        raise _too_large(left if bytes_max is None else bytes_max)
    return bytes(pa.Codec("snappy").decompress(pa.py_buffer(data), decompressed_size=size, asbytes=True))


def compressed(data: bytes | memoryview, by: Compression, *, xerial: bool = True) -> bytes:
    """Return records compressed, fast rather than small.

    snappy is in xerial's framing, which all clients read, unless `xerial` is False.
    """
    if by is Compression.NONE:
        return bytes(data)
    if by is Compression.LZ4:
        return b"".join([_LZ4_HEAD, *_lz4_blocks(memoryview(data)), _LZ4_END])
    if by is Compression.SNAPPY:
        return _snapped(data) if xerial else _packed(pa.Codec("snappy"), data)
    return _packed(pa.Codec(_STREAMS[by], compression_level=1), data)


def _packed(codec: pa.Codec, data: bytes | memoryview) -> bytes:
    return bytes(codec.compress(data, asbytes=True))


def _snapped(data: bytes | memoryview) -> bytes:
    codec = pa.Codec("snappy")
    starts = range(0, len(data), _XERIAL_BLOCK_BYTES)
    blocks = [_packed(codec, data[at : at + _XERIAL_BLOCK_BYTES]) for at in starts]
    framed = b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    return _XERIAL + _XERIAL_VERSIONS + framed


def _lz4_blocks(data: memoryview) -> Iterator[bytes | memoryview]:
    """Yield the blocks of a frame, each behind its length."""
    codec = pa.Codec("lz4_raw")
    for at in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[at : at + _LZ4_BLOCK_BYTES]
        block = _packed(codec, plain)
        if len(block) < len(plain):
            yield len(block).to_bytes(4, "little")
            yield block
        else:
            yield (len(plain) | _LZ4_PLAIN).to_bytes(4, "little")
            yield plain
