"""Confluent's wire format: what begins a body, and says which schema wrote the rest.

zero byte | id of the schema, four bytes | Protobuf only: where the message is in its file
                                           number of indexes, each index (zigzag); a zero byte for the first message
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltamq.tables.delta.varints import zigzag
from deltamq.tables.typed.avro.value import Input
from deltamq.tables.typed.misfit import Budget, Misfit

_ID_END: Final = 5
_INDEXES_MAX: Final = 32
_FIRST: Final = (0,)


def header_of(body: bytes, *, has_indexes: bool) -> bytes:
    """Return a body's header, as far as it is there."""
    if has_indexes and body[_ID_END : _ID_END + 1] == b"\0":
        return body[: _ID_END + 1]
    return body[:_ID_END] if not has_indexes or len(body) <= _ID_END else body[: _indexes_at(body)[1]]


def id_of(header: bytes) -> int | None:
    """Return the schema's id in a header; None: it has none."""
    return int.from_bytes(header[1:_ID_END], "big") if len(header) >= _ID_END and header[0] == 0 else None


def indexes_of(header: bytes) -> tuple[int, ...] | None:
    """Return where the message is in its file; None: the header does not say it."""
    return _indexes_at(header)[0] if len(header) > _ID_END else None


def whole_header(id_: int, indexes: Sequence[int] | None) -> bytes:
    """Return the header of the bodies of a schema; `indexes` are those of Protobuf."""
    start = b"\0" + id_.to_bytes(4, "big")
    if indexes is None:
        return start
    return start + (b"\0" if tuple(indexes) == _FIRST else b"".join(map(zigzag, (len(indexes), *indexes))))


def _indexes_at(body: bytes) -> tuple[tuple[int, ...] | None, int]:
    """The indexes of a message, and where they end."""
    source = Input(body, _ID_END, Budget(0))
    try:
        count = source.long()
        if not 0 <= count <= _INDEXES_MAX:
            return None, _ID_END
        return (tuple(source.long() for _ in range(count)) or _FIRST), source.at
    except Misfit:
        return None, _ID_END
