"""Row groups of parquet files as groups of another file: their bytes stay as they are, and their positions move.

A file's footer is one structure of Thrift's compact protocol. What it says of a row group is copied byte by byte, but
for the positions in the file and the group's number:

    FileMetaData   1 version  2 schema  3 rows  4 [RowGroup]  5 key values  6 who made it  7 column orders
    RowGroup       1 [ColumnChunk]  5 position  7 number
    ColumnChunk    2 position  3 ColumnMetaData  (4 and 6: positions of page indexes, which our files do not have)
    ColumnMetaData 9, 10, 11 positions of pages  14 position of a Bloom filter
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from deltamq.tables.delta.varints import varint, zigzag

_STOP: Final = 0
_BOOLS: Final = (1, 2)
#: Bytes and doubles, with their bytes.
_WIDTHS: Final = {3: 1, 7: 8}
_INTS: Final = (4, 5, 6)
_BINARY: Final = 8
_LISTS: Final = (9, 10)
_STRUCT: Final = 12
_LONG_LIST: Final = 15
#: The fields of FileMetaData.
_VERSION: Final = 1
_SCHEMA: Final = 2
_ROWS: Final = 3
_GROUPS: Final = 4
_KEY_VALUES: Final = 5
_MAKER: Final = 6
_ORDERS: Final = 7
_KNOWN: Final = {_VERSION, _SCHEMA, _ROWS, _KEY_VALUES, _MAKER, _ORDERS}

#: What becomes of a structure's fields, by id: of a number, or of the structures in it.
_Edits: TypeAlias = Mapping[int, Any]


class Footer(NamedTuple):
    """The parts of a file's footer that another file's is made of."""

    #: The schema, the version, who made the file, and the column orders if there are any: each as it is written.
    schema: bytes
    version: bytes
    maker: bytes
    orders: bytes | None
    rows: int
    #: The structure of each row group.
    groups: tuple[bytes, ...]

    def moved(self, by: int, number: int) -> list[bytes]:
        """Return the row groups' bytes for a position `by` bytes further on; the first gets this number.

        Raises
        ------
        ValueError
            One of them has something that cannot be moved.
        """
        try:
            return [_moved(group, by, number + at) for at, group in enumerate(self.groups)]
        except IndexError as error:
            raise ValueError("a row group's structure is cut off") from error


def read_footer(data: bytes) -> Footer:
    """Return the parts of a footer.

    Raises
    ------
    ValueError
        It is no footer, or has something that cannot be moved.
    """
    raw: dict[int, bytes] = {}
    groups: list[bytes] = []
    field = at = 0
    try:
        while (head := data[at]) != _STOP:
            field, at = _field_at(data, at, field)
            kind = head & 15
            if field == _GROUPS and kind in _LISTS:
                count, of, at = _list_at(data, at)
                for _ in range(count):
                    end = _skip(data, at, of)
                    groups.append(data[at:end])
                    at = end
                continue
            end = _skip(data, at, kind)
            raw[field] = data[at:end]
            at = end
        rows, _ = _zigzag_at(raw.get(_ROWS, b""), 0)
    except IndexError as error:
        raise ValueError("the footer is cut off") from error
    if not {_VERSION, _SCHEMA, _ROWS, _MAKER} <= raw.keys() <= _KNOWN:
        raise ValueError(f"the footer has fields {sorted(raw)}")
    return Footer(raw[_SCHEMA], raw[_VERSION], raw[_MAKER], raw.get(_ORDERS), rows, tuple(groups))


def joined_footer(
    like: Footer, orders: bytes | None, groups: Sequence[bytes], rows: int, key_values: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """Return the footer of a file with these row groups, and with the schema and the maker of `like`."""
    pieces = [b"\x15", like.version, b"\x19", like.schema, b"\x16", zigzag(rows), b"\x19", _list(groups)]
    if key_values:
        pairs = [b"\x18" + _text(key) + b"\x18" + _text(value) + b"\0" for key, value in key_values]
        pieces += [b"\x19", _list(pairs)]
    pieces += [b"\x18" if key_values else b"\x28", like.maker]
    if orders is not None:
        pieces += [b"\x19", orders]
    return b"".join((*pieces, b"\0"))


def _moved(group: bytes, by: int, number: int) -> bytes:
    def position(at: int) -> int:
        return at + by if at else 0  # 0 for none

    def refused(_: int) -> int:
        raise ValueError("a page index cannot be moved")

    chunk = {9: position, 10: position, 11: position, 14: position}
    edits = {1: {2: position, 3: chunk, 4: refused, 6: refused}, 5: position, 7: lambda _: number}
    out: list[bytes] = []
    _copy(group, 0, edits, out)
    return b"".join(out)


def _copy(data: bytes, at: int, edits: _Edits, out: list[bytes]) -> int:
    """Append the structure at a position to `out`, edited, and return where it ends."""
    kept, field = at, 0
    while (head := data[at]) != _STOP:
        field, at = _field_at(data, at, field)
        kind = head & 15
        edit = edits.get(field)
        if edit is None:
            at = _skip(data, at, kind)
            continue
        if callable(edit) != (kind in _INTS):
            raise ValueError(f"field {field} is of kind {kind}")
        if kind in _INTS:
            out.append(data[kept:at])
            value, at = _zigzag_at(data, at)
            out.append(zigzag(edit(value)))
        elif kind == _STRUCT:
            out.append(data[kept:at])
            at = _copy(data, at, edit, out)
        else:
            count, _, first = _list_at(data, at)
            out.append(data[kept:first])
            at = first
            for _ in range(count):
                at = _copy(data, at, edit, out)
        kept = at
    out.append(data[kept : at + 1])
    return at + 1


def _field_at(data: bytes, at: int, before: int) -> tuple[int, int]:
    """Return the id of the field whose head is at a position, and where its value begins; `before` is the last id."""
    step = data[at] >> 4
    return (before + step, at + 1) if step else _zigzag_at(data, at + 1)


def _skip(data: bytes, at: int, kind: int) -> int:
    """Return where the value of a kind ends that begins at a position."""
    if kind in _INTS:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BINARY:
        size, at = _varint_at(data, at)
        return _within(data, at + size)
    if kind == _STRUCT:
        while (head := data[at]) != _STOP:
            at = _skip(data, at + 1 if head >> 4 else _zigzag_at(data, at + 1)[1], head & 15)
        return at + 1
    if kind in _LISTS:
        count, of, at = _list_at(data, at)
        for _ in range(count):
            at = at + 1 if of in _BOOLS else _skip(data, at, of)
        return at
    if kind in _BOOLS:
        return at
    if kind in _WIDTHS:
        return _within(data, at + _WIDTHS[kind])
    raise ValueError(f"a value of kind {kind}")


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError(at)
    return at


def _list_at(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the length of a list, the kind of its elements, and where they begin."""
    head = data[at]
    count, at = head >> 4, at + 1
    if count == _LONG_LIST:
        count, at = _varint_at(data, at)
    if count > len(data) - at:
        raise IndexError(at)
    return count, head & 15, at


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    if data[at] < 128:
        return data[at], at + 1
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _zigzag_at(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint_at(data, at)
    return (value >> 1) ^ -(value & 1), at


def _text(raw: bytes) -> bytes:
    return varint(len(raw)) + raw


def _list(structs: Sequence[bytes]) -> bytes:
    count = len(structs)
    head = bytes((count << 4 | _STRUCT,)) if count < _LONG_LIST else bytes((_LONG_LIST << 4 | _STRUCT,)) + varint(count)
    return head + b"".join(structs)
