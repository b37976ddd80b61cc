"""Compressed records, as Kafka frames them, with a bound on what they may become.

gzip, lz4 (frames), zstd   streams, read piece by piece until the bound
snappy                     one raw block, or blocks in the framing of the library xerial, which Java clients write
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from deltamq.api.kafka.records.varints import corrupt
from deltamq.mq.errors import TooLarge

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
#: In a block's length, that it is as it was.
_LZ4_PLAIN: Final = 1 << 31
_LZ4_END: Final = bytes(4)


class Compression(enum.IntEnum):
    """How records are compressed, by its number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


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
    """Expand one block, which begins with the size that it takes then."""
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

    snappy is in xerial's framing, which all clients read, unless told otherwise.
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
