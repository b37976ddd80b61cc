"""Columns as rows, and rows as columns, in Arrow's form: days and microseconds are numbers, maps are lists of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.tables.typed.columns import column_of


def rows_of(values: pa.Array) -> list[Any]:
    """Return the values of a column."""
    kind = values.type
    if pa.types.is_struct(kind):
        columns = [rows_of(values.field(position)) for position in range(kind.num_fields)]
        names = [field.name for field in kind]
        rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return _with_nulls(rows, values)
    if pa.types.is_map(kind):
        pairs = list(zip(rows_of(values.keys), rows_of(values.items), strict=True))
        return _sliced(pairs, values)
    if pa.types.is_list(kind):
        return _sliced(rows_of(values.values), values)
    if pa.types.is_date(kind):
        return list(values.view(pa.int32()).to_pylist())
    if pa.types.is_timestamp(kind):
        return list(values.view(pa.int64()).to_pylist())
    return list(values.to_pylist())


def _sliced(items: list[Any], values: pa.Array) -> list[Any]:
    ends = values.offsets.to_pylist()
    return _with_nulls([items[low:high] for low, high in pairwise(ends)], values)


def _with_nulls(rows: list[Any], values: pa.Array) -> list[Any]:
    if not values.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, values.is_valid().to_pylist(), strict=True)]


def projected(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the part of all versions' columns that one version has, of its type; what is not there is null."""
    if values.type == kind:
        return values
    if not pa.types.is_struct(kind):
        # Lists and maps of structs: their elements are copied.
        return pa.array([_row(row, values.type, kind) for row in rows_of(values)], kind)
    fields = {field.name: field.type for field in values.type}
    columns = []
    for field in kind:
        column = column_of(fields, field, kind)
        columns.append(
            pa.nulls(len(values), field.type) if column is None else projected(values.field(column), field.type)
        )
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=values.is_null() if values.null_count else None)


def _row(row: Any, have: pa.DataType, kind: pa.DataType) -> Any:
    if row is None or have == kind:
        return row
    if pa.types.is_list(kind):
        return [_row(item, have.value_type, kind.value_type) for item in row]
    if pa.types.is_map(kind):
        return [(name, _row(item, have.item_type, kind.item_type)) for name, item in row]
    fields = {field.name: field.type for field in have}
    names = [(field, column_of(fields, field, kind)) for field in kind]
    return {field.name: _row(row[name], fields[name], field.type) for field, name in names if name is not None}


def without(values: pa.Array, gone: NDArray[np.bool_]) -> pa.Array:
    """Return values with null in the places of `gone`."""
    return pc.if_else(pa.array(~gone), values, pa.scalar(None, values.type))


def in_order(groups: Sequence[tuple[Sequence[int], pa.Array]], count: int, kind: pa.DataType) -> pa.Array:
    """Return a column of `count` rows: those of each group at its positions, the last one's where two have the same."""
    if len(groups) == 1 and groups[0][0] == range(count):
        return groups[0][1]
    order = np.zeros(count, np.int64)
    start = 1
    for positions, values in groups:
        order[np.asarray(positions, np.int64)] = np.arange(start, start + len(values))
        start += len(values)
    return pa.concat_arrays([pa.nulls(1, kind), *(values for _, values in groups)]).take(pa.array(order))
