"""Numbers as Thrift's compact protocol and Parquet's levels write them: seven bits a byte, the lowest first."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """Encode a signed number: small ones of both signs are short."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)
