"""Encoding of few rows as a parquet file, without pyarrow's writer.

A single message, or a few hundred, become a file of their own, which lives for a second or two until it is rolled up.
pyarrow's writer takes most of such a commit's time: it sets up sixteen columns to write a few dozen bytes into each.
Here a column without values is a constant, and the rest is joined from pieces: a seventh of the cost for one row, a
quarter for a hundred, the same for a thousand.

    PAR1 | a page for each leaf column: header, levels, plain values | footer | its length | PAR1

The bytes of the schema come from a file that pyarrow wrote, so both kinds of file look the same to a reader. There are
no dictionaries, no compression and no statistics: the commit carries the statistics that matter. The pages of nested
columns are made by numpy (`nested_pages.py`). Where there was a C compiler, one compiled call joins the pieces, to the
same bytes.
"""

from __future__ import annotations

import functools
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from deltamq.tables.column_ends import text_bytes
from deltamq.tables.delta.native_parquet import Leaves, NativeLeaf, NativeShape, WholePage, WrittenFile, native_writer
from deltamq.tables.delta.nested_pages import leaf_pages, plain_values
from deltamq.tables.delta.stamped import ID_PREFIX, RowsPart, Stamped
from deltamq.tables.delta.varints import varint, zigzag
from deltamq.tables.schema import MESSAGE_SCHEMA, TIME
from deltamq.tables.typed_row import TYPED

#: Most rows of a file that is written in this way, except appends.
SMALL_FILE_ROWS_MAX: Final = 1_500
#: Row counts whose `_Shape` is kept: some KiB each.
_SHAPES: Final = 2_048
#: Bytes that every row takes: offset, two times, attempts, an id of the usual length, and the length of its body.
_FILLED_BYTES: Final = 60
#: Bytes that its producer takes besides its id: a sequence and a length.
_PRODUCER_BYTES: Final = 12
#: Rows whose bytes need not be counted before they are written.
_FEW_ROWS: Final = 16
#: Most texts that are joined piece by piece: for more, numpy and Arrow take less time.
_JOINED_MAX: Final = 32
_MAGIC: Final = b"PAR1"
_CREATED_BY: Final = b"DeltaMQ version 0.1.0"
_PHYSICAL_TYPES: Final = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "FLOAT": 4,
    "DOUBLE": 5,
    "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}
#: Leaves with longer paths have another header in Thrift's encoding.
_PATH_MAX: Final = 15
#: Schemas whose template is kept.
_TEMPLATES: Final = 256
#: Bytes of one value, by physical type, for columns of a fixed width.
_WIDTHS: Final = {1: 4, 2: 8, 4: 4, 5: 8}
_NESTED: Final = ("headers", "origin")
#: Columns whose nulls are filled.
_FILLED: Final = ("message_id", "born_time", "reconsume_times")
_ZERO: Final = array("q", (0,))
#: Types whose values the compiled function takes from Arrow's buffers.
_NATIVE: Final = (pa.int32(), pa.int64(), pa.date32(), TIME, pa.float32(), pa.float64(), pa.string(), pa.binary())
_AT: Final = {name: at for at, name in enumerate(MESSAGE_SCHEMA.names)}


class _Leaf(msgspec.Struct, frozen=True):
    column: int  #: position of its top-level column
    kind: int  #: parquet's number of the physical type
    path: tuple[str, ...]
    levels_max: int  #: greatest definition level; 0 for a column without nulls
    repeated: bool


class _Branch(NamedTuple):
    """A nested or typed column, or a part of it: its leaves, a struct's fields, whether its values are native."""

    leaves: tuple[int, ...]
    fields: tuple[_Branch, ...]
    #: Whether the compiled function takes values of this type from Arrow's buffers.
    is_native: bool


def _branch(kind: pa.DataType, numbers: Iterator[int]) -> _Branch:
    if not pa.types.is_nested(kind):
        return _Branch((next(numbers),), (), kind in _NATIVE)
    if pa.types.is_map(kind):
        kinds = [kind.key_type, kind.item_type]
    else:
        kinds = [field.type for field in kind] if pa.types.is_struct(kind) else [kind.value_type]
    below = tuple(_branch(inner, numbers) for inner in kinds)
    leaves = tuple(chain.from_iterable(branch.leaves for branch in below))
    return _Branch(leaves, below if pa.types.is_struct(kind) else (), False)


class Template:
    """What all files with the same columns share: those of every message, and perhaps typed ones behind them."""

    def __init__(self, typed: Sequence[pa.Field] = ()) -> None:
        """Read it from a file that pyarrow writes."""
        self.typed = tuple(field.name for field in typed)
        schema = pa.schema([*MESSAGE_SCHEMA, *typed])
        data = _sample(schema)
        self.schema = _schema_of(data)
        self.schema_buffer = pa.py_buffer(self.schema)
        self.leaves = _leaves_of(data, schema)
        self.chunk_starts = tuple(map(_chunk_start, self.leaves))
        #: The leaves of columns that are not nested, by name.
        self.flat = {leaf.path[0]: number for number, leaf in enumerate(self.leaves) if len(leaf.path) == 1}
        #: How the leaves of nested and of typed columns are set, by name.
        self.branches = {
            field.name: _branch(field.type, iter(self._leaves_below(field.name)))
            for field in (*map(MESSAGE_SCHEMA.field, _NESTED), *typed)
        }
        self.is_plain = all(len(leaf.path) < _PATH_MAX for leaf in self.leaves)

    def _leaves_below(self, name: str) -> tuple[int, ...]:
        return tuple(number for number, leaf in enumerate(self.leaves) if leaf.path[0] == name)


@functools.cache
def message_template() -> Template:
    """Return the template of files without typed columns."""
    return Template()


@functools.lru_cache(_TEMPLATES)
def _typed_template(typed: tuple[pa.Field, ...]) -> Template:
    return Template(typed)


class _Shape(msgspec.Struct, frozen=True):
    """The bytes that are the same in all files with the same number of rows, by leaf and for the footer."""

    rows: int
    all_present: bytes  #: definition levels of a flat column without nulls
    page_end: bytes  #: the end of a page header
    null_pages: tuple[bytes, ...]
    chunk_starts: tuple[bytes, ...]  #: the start of each leaf's column chunk in the footer


def encode_few_rows(rows: pa.Table, key_values: Sequence[tuple[bytes, bytes]], bytes_max: int) -> WrittenFile | None:
    """Return the file; None if this writer cannot write the rows, or not in `bytes_max`.

    `rows` has MESSAGE_SCHEMA's columns, each in one chunk; `key_values` go into the footer's metadata.
    """
    count = rows.num_rows
    columns = [column.chunk(0) for column in rows.columns]
    if not 0 < count <= SMALL_FILE_ROWS_MAX:
        return None
    pages = all_nested_pages(columns)
    writer = native_writer()
    written = None
    if writer is not None:
        shape = native_shape(message_template(), count)
        written = writer.write(shape, leaves_of(columns, shape, pages), count, _tail(key_values), bytes_max)
    return written or encode_in_pieces(columns, count, key_values, bytes_max, pages)


def leaves_of(columns: Sequence[pa.Array], shape: NativeShape, pages: Mapping[int, WholePage]) -> Leaves:
    """Return a file's columns as the compiled function takes them; `pages` are those of the nested one, by leaf."""
    leaves = Leaves(shape)
    for leaf, number in enumerate(shape.columns):
        if leaf in pages:
            leaves.page(leaf, *pages[leaf])
        elif columns[number].null_count < len(columns[number]):
            leaves.column(leaf, columns[number])
    return leaves


def all_nested_pages(columns: Sequence[pa.Array]) -> dict[int, WholePage]:
    """Return the pages of the nested ones of MESSAGE_SCHEMA's columns, by leaf."""
    pages: dict[int, WholePage] = {}
    for name in _NESTED:
        column = columns[_AT[name]]
        if column.null_count < len(column):
            pages |= _pages(column, iter(message_template().branches[name].leaves), 0, message_template())
    return pages


def _set_nested(leaves: Leaves, column: pa.Array, branch: _Branch, level: int, template: Template) -> None:
    """Set the leaves of a nested or typed column: those in structs without nulls as they are, others by their pages."""
    if branch.fields and not column.null_count:
        for number, field in enumerate(branch.fields):
            _set_nested(leaves, column.field(number), field, level + 1, template)
    elif branch.is_native and column.null_count < len(column):
        leaves.column(branch.leaves[0], column)
    else:
        for leaf, page in _pages(column, iter(branch.leaves), level, template).items():
            leaves.page(leaf, *page)


def _pages(column: pa.Array, numbers: Iterator[int], level: int, template: Template) -> dict[int, WholePage]:
    """Return the pages of a column inside of `level` structs without nulls, by leaf."""
    pages = {}
    for page in leaf_pages(column, level):
        leaf = next(numbers)
        plain = plain_values(page.values)
        body = page.levels + (_values(page.values, _PHYSICAL_TYPES["BYTE_ARRAY"]) if plain is None else plain)
        number = _zigzag(page.places)
        pages[leaf] = WholePage(_whole_page(body, _page_end(number)), template.chunk_starts[leaf] + number + b"\x16")
    return pages


def encode_few_stamped(rows: Stamped, key_values: Sequence[tuple[bytes, bytes]], bytes_max: int) -> WrittenFile | None:
    """Return the file of an append's rows with the bounds of their born times; None if they must be made first.

    That is so without the compiled function, and where `encode_few_rows` returns None, but for the number of rows:
    this takes a sixth of pyarrow's time also for ten thousand.
    """
    writer = native_writer()
    if writer is None:
        return None
    assert rows.count > 0, "an empty file would have no offsets"
    body = rows.rows.schema.get_field_index("body")
    if body >= 0 and _FILLED_BYTES * rows.count + text_bytes(rows.rows.column(body)) > bytes_max:
        return None
    fields = tuple(field for field in rows.rows.schema if field.name in TYPED) if rows.is_typed else ()
    template = _typed_template(fields) if fields else message_template()
    if not template.is_plain or (fields and rows.count > _FEW_ROWS and rows.rows.nbytes > bytes_max):
        return None
    shape = native_shape(template, rows.count)
    leaves = _stamped_leaves(rows, shape, template)
    if leaves is None:
        return None
    timed = template.flat["born_time"]
    return writer.write(shape, leaves, rows.count, _tail(key_values), bytes_max, timed=timed)


def _stamped_leaves(rows: Stamped, shape: NativeShape, template: Template) -> Leaves | None:
    """Return what each column holds; None if one is filled only for some of the rows."""
    count, at, leaves = rows.count, template.flat, Leaves(shape)
    whole, now = array("q", (count,)), array("q", (rows.append_us,))
    given = set()
    for name, column in zip(rows.rows.schema.names, rows.rows.columns, strict=True):
        nulls = column.null_count
        if nulls == count:
            continue
        if name in template.branches:
            _set_nested(leaves, column, template.branches[name], 0, template)
            continue
        if nulls and name in _FILLED:
            return None
        leaves.column(at[name], column)
        given.add(name)
    leaves.growing(at["offset"], rows.start)
    leaves.repeated(at["append_time"], now, whole)
    if "message_id" not in given:
        leaves.numbered(at["message_id"], rows.batch_id[:ID_PREFIX].encode())
    if "born_time" not in given:
        leaves.repeated(at["born_time"], now, whole)
    if "reconsume_times" not in given:
        leaves.repeated(at["reconsume_times"], _ZERO, whole)
    return leaves if _set_producers(leaves, rows.parts) else None


def _set_producers(leaves: Leaves, parts: Sequence[RowsPart]) -> bool:
    """Set `producer_id` and `producer_seq`; return False if only some rows have a producer."""
    stamps = [part.producer for part in parts if part.producer is not None]
    if not stamps:
        return True
    if len(stamps) < len(parts):
        return False
    at, counts = message_template().flat, array("q", [part.count for part in parts])
    ids = [stamp.id.encode() for stamp in stamps]
    ends = array("i", (0, *accumulate(map(len, ids))))
    leaves.repeated_texts(at["producer_id"], ends, b"".join(ids), counts)
    leaves.repeated(at["producer_seq"], array("q", [stamp.seq for stamp in stamps]), counts)
    return True


def encode_in_pieces(
    columns: Sequence[pa.Array],
    count: int,
    key_values: Sequence[tuple[bytes, bytes]],
    bytes_max: int,
    pages: Mapping[int, WholePage],
) -> WrittenFile | None:
    """Do what `encode_few_rows` does, without the compiled function; `pages` are those of the nested column."""
    if _least_bytes(columns, count) > bytes_max:
        return None
    template = message_template()
    shape = _shape(template, count)
    pieces = [_MAGIC]
    chunks = []
    at = len(_MAGIC)
    for number, leaf in enumerate(template.leaves):
        column, start = columns[leaf.column], shape.chunk_starts[number]
        if number in pages:
            page, start = pages[number]
        else:
            page = shape.null_pages[number] if column.null_count == count else _page(column, leaf, shape)
        size = _zigzag(len(page))
        chunks += [start, size, b"\x16", size, b"\x26", _zigzag(at), b"\0\0"]
        pieces.append(page)
        at += len(page)
        if at > bytes_max:
            return None
    pieces += _footer(shape, chunks, at - len(_MAGIC), key_values)
    body = b"".join(pieces)
    data = b"".join((body, (len(body) - at).to_bytes(4, "little"), _MAGIC))
    view = memoryview(data)
    return WrittenFile(data, zlib.crc32(view[:at]), zlib.crc32(view[at:]))


def _least_bytes(columns: Sequence[pa.Array], count: int) -> int:
    """Return a lower bound of the file's bytes, to detect early that it would be too large."""
    producer = columns[_AT["producer_id"]]
    known = _FILLED_BYTES * count + text_bytes(columns[_AT["body"]])
    return known if producer.null_count else known + _PRODUCER_BYTES * count + text_bytes(producer)


# Pages --------------------------------------------------------------------------------------------------------


def _page(column: pa.Array, leaf: _Leaf, shape: _Shape) -> bytes:
    valid = None
    levels = shape.all_present if leaf.levels_max else b""
    if column.null_count:
        valid = column.is_valid().to_pylist()
        levels = _levels(_runs(valid))
        column = column.drop_null()
    return _whole_page(levels + _values(column, leaf.kind), shape.page_end)


def _whole_page(body: bytes, page_end: bytes) -> bytes:
    size = _zigzag(len(body))
    return b"".join((b"\x15\0\x15", size, b"\x15", size, b"\x15", _zigzag_crc(zlib.crc32(body)), page_end, body))


def _values(column: pa.Array, kind: int) -> bytes:
    start, count = column.offset, len(column)
    if kind in _WIDTHS:
        width = _WIDTHS[kind]
        return bytes(memoryview(column.buffers()[1])[start * width : (start + count) * width])
    _, offsets, data = column.buffers()
    ends = memoryview(offsets).cast("i")[start : start + count + 1]
    text = memoryview(data) if data is not None else memoryview(b"")
    if count > _JOINED_MAX:
        return _many_texts(np.asarray(ends), text)
    pieces: list[bytes | memoryview] = []
    low = ends[0]
    for high in ends[1:].tolist():
        pieces += ((high - low).to_bytes(4, "little"), text[low:high])
        low = high
    return b"".join(pieces)


def _many_texts(ends: NDArray[np.int32], text: memoryview) -> bytes:
    """Return texts behind their lengths: a table of equal rows if they are of one length, else interleaved by Arrow."""
    lengths = np.diff(ends)
    count, length = len(lengths), int(lengths[0])
    if (lengths == length).all():
        rows = np.empty((count, 4 + length), dtype=np.uint8)
        rows[:, :4] = np.frombuffer(length.to_bytes(4, "little"), dtype=np.uint8)
        whole = np.frombuffer(text, dtype=np.uint8)[ends[0] : ends[-1]]
        rows[:, 4:] = whole.reshape(count, length)
        return rows.tobytes()
    numbers = pa.py_buffer(lengths.astype("<i4"))
    number_ends = pa.py_buffer(np.arange(0, 4 * count + 1, 4, dtype=np.int32))
    both = pa.concat_arrays(
        [
            pa.BinaryArray.from_buffers(pa.binary(), count, [None, number_ends, numbers]),
            pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(text)]),
        ]
    )
    turns = np.arange(2 * count).reshape(2, count).T.ravel()
    _, _, data = both.take(pa.array(turns)).buffers()
    return bytes(memoryview(data)[: 4 * count + int(ends[-1] - ends[0])])


def _levels(runs: bytes) -> bytes:
    return len(runs).to_bytes(4, "little") + runs


def _runs(valid: Sequence[bool]) -> bytes:
    """Return the definition levels of a flat column, run by run."""
    return b"".join(_run(sum(1 for _ in run), level) for level, run in groupby(valid))


def _run(count: int, level: int) -> bytes:
    return varint(count << 1) + bytes((level,))


# Footer -------------------------------------------------------------------------------------------------------


def _footer(
    shape: _Shape, chunks: Sequence[bytes], pages_bytes: int, key_values: Sequence[tuple[bytes, bytes]]
) -> list[bytes]:
    rows, size = _zigzag(shape.rows), _zigzag(pages_bytes)
    template = message_template()
    pieces = [template.schema, b"\x16", rows, b"\x19\x1c\x19\xfc", varint(len(template.leaves)), *chunks]
    pieces += [b"\x16", size, b"\x16", rows, b"\x26", _zigzag(len(_MAGIC)), b"\x16", size, b"\0", _tail(key_values)]
    return pieces


def _tail(key_values: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the end of a footer: its metadata, and who made the file."""
    pieces = []
    if key_values:
        assert len(key_values) < 15, "a longer list has another header"
        pieces.append(bytes((0x19, len(key_values) << 4 | 0xC)))
        for key, value in key_values:
            pieces += [b"\x18", varint(len(key)), key, b"\x18", varint(len(value)), value, b"\0"]
    pieces += [b"\x18" if key_values else b"\x28", varint(len(_CREATED_BY)), _CREATED_BY, b"\0"]
    return b"".join(pieces)


def _schema_of(data: bytes) -> bytes:
    """Return the start of a footer, to the end of the schema, as pyarrow writes it."""
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    one_row_one_group = b"\x16\x02\x19\x1c"
    assert one_row_one_group in footer, "the layout of pyarrow's footer has changed"
    return footer[: footer.rindex(one_row_one_group)]


def _leaves_of(data: bytes, schema: pa.Schema) -> tuple[_Leaf, ...]:
    footer = pq.read_metadata(pa.BufferReader(data))
    group = footer.row_group(0)
    leaves = []
    for i in range(footer.num_columns):
        path = tuple(group.column(i).path_in_schema.split("."))
        column = footer.schema.column(i)
        leaves.append(
            _Leaf(
                column=schema.get_field_index(path[0]),
                kind=_PHYSICAL_TYPES[group.column(i).physical_type],
                path=path,
                levels_max=column.max_definition_level,
                repeated=column.max_repetition_level > 0,
            )
        )
    return tuple(leaves)


def _sample(schema: pa.Schema) -> bytes:
    empty = [pa.array([0]), *(pa.nulls(1, field.type) for field in list(schema)[1:])]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(empty, schema=schema),
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    return bytes(sink.getvalue())


@functools.lru_cache(_SHAPES)
def _shape(template: Template, count: int) -> _Shape:
    number = _zigzag(count)
    page_end = _page_end(number)
    levels = _levels(_run(count, 0))
    null_pages = _whole_page(levels, page_end), _whole_page(levels * 2, page_end)
    return _Shape(
        rows=count,
        all_present=_levels(_run(count, 1)),
        page_end=page_end,
        null_pages=tuple(null_pages[leaf.repeated] for leaf in template.leaves),
        chunk_starts=tuple(start + number + b"\x16" for start in template.chunk_starts),
    )


def _page_end(number: bytes) -> bytes:
    """Return the end of the header of a page with this number of levels."""
    return b"\x1c\x15" + number + b"\x15\0\x15\x06\x15\x06\0\0"


@functools.lru_cache(_SHAPES)
def native_shape(template: Template, count: int) -> NativeShape:
    """Return what the compiled function takes and all files with these columns and this many rows share."""
    shape = _shape(template, count)
    leaves = [
        NativeLeaf(leaf.column, page, start, _WIDTHS.get(leaf.kind, 0), leaf.levels_max)
        for leaf, page, start in zip(template.leaves, shape.null_pages, shape.chunk_starts, strict=True)
    ]
    return NativeShape(leaves, shape.page_end, template.schema_buffer)


def _chunk_start(leaf: _Leaf) -> bytes:
    """Return a column chunk's metadata up to its number of values: file offset, type, encodings, path, codec."""
    return (
        b"\x26\0\x1c\x15"
        + _zigzag(leaf.kind)
        + b"\x19\x25\x06\0"
        + bytes((0x19, len(leaf.path) << 4 & 0xFF | 8))
        + b"".join(varint(len(part.encode())) + part.encode() for part in leaf.path)
        + b"\x15\0\x16"
    )


# Numbers ------------------------------------------------------------------------------------------------------


#: Sizes and positions of small files come again and again.
_zigzag = functools.lru_cache(maxsize=65_536)(zigzag)


def _zigzag_crc(crc: int) -> bytes:
    """Encode a checksum, which Parquet declares as a signed 32-bit number."""
    return zigzag(crc - (1 << 32) if crc >> 31 else crc)
