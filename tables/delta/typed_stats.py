"""Delta's statistics of typed columns: by them, engines skip files whose values cannot match (SPEC TYPE-2).

Statistics hold only what is exact, or what errs to the side that keeps a file: a text longer than `_TEXT_MAX` begins
the least value and is left out as the greatest; times are in milliseconds, rounded outwards; a column with a value that
JSON has no number for (NaN, infinity) has no bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.lib import (
    Type_BINARY,
    Type_BOOL,
    Type_DOUBLE,
    Type_FLOAT,
    Type_INT8,
    Type_INT16,
    Type_INT32,
    Type_INT64,
    Type_LIST,
    Type_MAP,
    Type_STRUCT,
    Type_TIMESTAMP,
)

from deltamq.tables.typed_row import INVALID, VALUE

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_MAX: Final = 32
#: Rows whose bounds are found one by one.
_FEW_ROWS: Final = 16
#: Types by Arrow's numbers, which are compared faster: nested, without bounds, and with values that JSON has not.
_LISTS: Final = (Type_LIST, Type_MAP)
_UNBOUNDED: Final = (Type_BOOL, Type_BINARY)
_FLOATS: Final = (Type_FLOAT, Type_DOUBLE)
_NUMBERS: Final = (Type_INT64, Type_DOUBLE, Type_FLOAT, Type_INT8, Type_INT16, Type_INT32)
#: In a file's statistics, what stands before the number of rows that fit, if some did not.
INVALID_MARK: Final = '"invalid":{"code":'
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


class TypedStats(NamedTuple):
    """The members `"value":{...},` of `minValues`, `maxValues` and `nullCount`; empty if there are none."""

    least: str = ""
    greatest: str = ""
    nulls: str = ""


NO_STATS: Final = TypedStats()


def fitting_of(stats: str) -> int:
    """Return how many rows of a file fit, from statistics that have the mark."""
    text = stats[stats.index(INVALID_MARK) + len(INVALID_MARK) :]
    return int(text[: text.index("}")])


class TypedBounds(msgspec.Struct):
    """The statistics of `value`: nested as the fields are."""

    least: dict[str, Any] = msgspec.field(default_factory=dict)
    greatest: dict[str, Any] = msgspec.field(default_factory=dict)
    nulls: dict[str, Any] = msgspec.field(default_factory=dict)
    #: The rows of which no body did not fit, and whether there are others.
    fitting: int = 0
    has_invalid: bool = False

    def put(self, name: str, below: TypedBounds) -> None:
        """Note the statistics of a struct's fields, as far as there are any."""
        for mine, its in ((self.least, below.least), (self.greatest, below.greatest), (self.nulls, below.nulls)):
            if its:
                mine[name] = its

    def joined(self, other: TypedBounds) -> TypedBounds:
        """Return the statistics of the rows of both."""
        return TypedBounds(
            joined_typed((self.least, other.least), "min"),
            joined_typed((self.greatest, other.greatest), "max"),
            joined_typed((self.nulls, other.nulls), "sum"),
            self.fitting + other.fitting,
            self.has_invalid or other.has_invalid,
        )

    def stats(self) -> TypedStats:
        """Return the statistics as members of Delta's."""
        least, greatest, nulls = (_member(values) for values in (self.least, self.greatest, self.nulls))
        return TypedStats(least, greatest, nulls + (f"{INVALID_MARK}{self.fitting}}}," if self.has_invalid else ""))


def text_bounds(footer: pq.FileMetaData) -> dict[str, tuple[str, str]]:
    """Return the least and the greatest value of each typed text of a file, by its path, if all row groups have them.

    The writer of a file has found them already: to find them again takes longer than all else about these statistics.
    """
    bounds: dict[str, tuple[str, str]] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if not column.path.startswith(f"{VALUE}.") or column.logical_type.type != "STRING":
            continue
        found = [group.column(number).statistics for group in groups]
        if all(of is not None and of.has_min_max for of in found):
            bounds[column.path] = min(of.min for of in found), max(of.max for of in found)
    return bounds


def typed_bounds(
    rows: pa.Table | pa.RecordBatch, texts: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> TypedBounds:
    """Return the statistics of rows' typed values; `texts` are bounds that are known, see `text_bounds`."""
    bounds = TypedBounds()
    at = rows.schema.get_field_index(VALUE)
    if at >= 0:
        values = rows.column(at)
        if rows.num_rows <= _FEW_ROWS:
            _collect_few(values if isinstance(values, pa.Array) else values.combine_chunks(), bounds)
        else:
            _collect([values] if isinstance(values, pa.Array) else values.chunks, bounds, VALUE, texts)
    at, bounds.fitting = rows.schema.get_field_index(INVALID), rows.num_rows
    if at >= 0:
        bounds.fitting = rows.column(at).null_count
        bounds.has_invalid = bounds.fitting < rows.num_rows
    return bounds


def _member(values: dict[str, Any]) -> str:
    return f'"{VALUE}":{_encode(values).decode()},' if values else ""


def _collect(
    chunks: Sequence[pa.StructArray], into: TypedBounds, path: str, texts: Mapping[str, tuple[str, str]]
) -> None:
    """Add the statistics of a struct's fields; a field of a null struct is null."""
    flat = [chunk.flatten() for chunk in chunks]
    for at, inner in enumerate(chunks[0].type):
        name, columns = inner.name, [fields[at] for fields in flat]
        if pa.types.is_struct(inner.type):
            _collect(columns, below := TypedBounds(), f"{path}.{name}", texts)
            into.put(name, below)
        elif not pa.types.is_nested(inner.type):
            into.nulls[name] = sum(column.null_count for column in columns)
            if (known := texts.get(f"{path}.{name}")) is not None:
                _note(name, *known, into)
            else:
                _add_bounds(pa.chunked_array(columns), inner, into)


def _collect_few(values: pa.StructArray, into: TypedBounds) -> None:
    """Do as `_collect` does, without Arrow's kernels, each of which costs as much for one row as for a thousand."""
    kinds = values.type
    columns = values.flatten() if values.null_count else map(values.field, range(kinds.num_fields))
    for of, column in zip(kinds, columns, strict=True):
        name, kind = of.name, of.type.id
        if kind == Type_STRUCT:
            _collect_few(column, below := TypedBounds())
            into.put(name, below)
        elif kind not in _LISTS:
            into.nulls[name] = nulls = column.null_count
            if kind in _UNBOUNDED or nulls == len(column):
                continue
            present = (column.view(pa.int64()) if kind == Type_TIMESTAMP else column).to_pylist()
            if nulls:
                present = [value for value in present if value is not None]
            if kind in _FLOATS and not all(map(math.isfinite, present)):
                continue
            low, high = (min(present), max(present)) if len(present) > 1 else (present[0], present[0])
            if kind in _NUMBERS:
                into.least[name], into.greatest[name] = low, high
            elif kind == Type_TIMESTAMP:
                _note_times(name, low, high, into)
            else:
                _note(name, low, high, into)


def _note(name: str, low: Any, high: Any, into: TypedBounds) -> None:
    least, greatest = _stored(low), _stored(high)
    if not isinstance(least, str) or isinstance(low, date):
        into.least[name], into.greatest[name] = least, greatest
        return
    into.least[name] = least[:_TEXT_MAX]
    if len(greatest) <= _TEXT_MAX:
        into.greatest[name] = greatest


def _add_bounds(column: pa.ChunkedArray, of: pa.Field, into: TypedBounds) -> None:
    kind, name = of.type, of.name
    if pa.types.is_boolean(kind) or pa.types.is_binary(kind) or column.null_count == len(column):
        return
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column), min_count=0).as_py():
        return
    extremes = pc.min_max(column)
    low, high = extremes["min"], extremes["max"]
    if pa.types.is_timestamp(kind):
        _note_times(name, low.value, high.value, into)
    else:
        _note(name, low.as_py(), high.as_py(), into)


def _note_times(name: str, low_us: int, high_us: int, into: TypedBounds) -> None:
    into.least[name] = _iso_ms(low_us // 1_000)
    into.greatest[name] = _iso_ms(-(-high_us // 1_000))


def _iso_ms(time_ms: int) -> str:
    time = _EPOCH + timedelta(milliseconds=time_ms)
    return f"{time.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _stored(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    assert not (isinstance(value, float) and not math.isfinite(value)), "columns with such values have no bounds"
    return value


def joined_typed(parts: Sequence[dict[str, Any]], join: str) -> dict[str, Any]:
    """Return the joined statistics of adjacent files: of what all of them have. `join` is `min`, `max` or `sum`."""
    first, *rest = parts
    out: dict[str, Any] = {}
    for name, value in first.items():
        if not all(name in other for other in rest):
            continue
        values = [value, *(other[name] for other in rest)]
        if isinstance(value, dict):
            below = joined_typed(values, join)
            if below:
                out[name] = below
        else:
            out[name] = sum(values) if join == "sum" else (min if join == "min" else max)(values)
    return out
