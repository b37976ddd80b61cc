"""Columns that a producer sends as Arrow, as the topic's: a type is changed only where values stay (SPEC TYPE-16).

Whole numbers become others, or doubles, one by one where they are the same; texts, bytes and lists of Arrow's other
layouts become the one of the table; a time of another unit or zone stays the same instant.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.mq.errors import Unprocessable
from deltamq.tables.typed.columns import with_items
from deltamq.tables.typed.json.constraints import broken
from deltamq.tables.typed.json.value import END_US, FIRST_DAY, FIRST_US, LAST_DAY
from deltamq.tables.typed.misfit import Misfit, Reason
from deltamq.tables.typed.node import Child, Node
from deltamq.tables.typed.rows import without

#: Rows that do not fit, and why.
Fault = tuple[NDArray[np.bool_], Misfit]

_BOUNDS: Final = {
    pa.date32(): (FIRST_DAY, LAST_DAY, pa.int32()),
    pa.timestamp("us", tz="UTC"): (FIRST_US, END_US - 1, pa.int64()),
}


def taken(values: pa.StructArray, root: Node) -> tuple[pa.StructArray, list[Fault]]:
    """Return sent values as columns of a schema, and the rows that do not fit.

    Raises
    ------
    Unprocessable
        `invalid_value`: a column has a type whose values are no values of the schema's, or the schema does not have it.
    """
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Unprocessable(f"value: is not valid Arrow: {str(error)[:200]}", field="value") from None
    faults: list[Fault] = []
    columns = _taken(values, root, "", faults)
    for one in broken(columns, root)[1] if root.is_constrained else ():
        rows = np.zeros(len(values), np.bool_)
        rows[one.rows] = True
        faults.append((rows, one.misfit))
    return columns, faults


def _taken(values: pa.Array, node: Node, at: str, faults: list[Fault]) -> pa.Array:
    if node.form in ("nullable", "wrapper"):
        return _taken(values, node.children[0].node, at, faults)
    if pa.types.is_dictionary(values.type):
        return _taken(values.dictionary_decode(), node, at, faults)
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), node.arrow)
    if pa.types.is_struct(node.arrow):
        return _struct(values, node, at, faults)
    if pa.types.is_list(node.arrow) or pa.types.is_map(node.arrow):
        return _nested(values, node, at, faults)
    return _leaf(values, node, at, faults)


def _other_type(values: pa.Array, node: Node, at: str) -> Unprocessable:
    sent, wanted = str(values.type)[:100], str(node.arrow)[:100]
    field = f"value.{at}" if at else "value"
    return Unprocessable(f"{field}: is {sent}, and the topic's column is {wanted}: send that", field=field)


def _struct(values: pa.Array, node: Node, at: str, faults: list[Fault]) -> pa.StructArray:
    if not pa.types.is_struct(values.type):
        raise _other_type(values, node, at)
    names = [child.name for child in node.children]
    for field in values.type:
        if field.name not in names or values.type.get_field_index(field.name) < 0:
            path = f"value.{at}.{field.name}" if at else f"value.{field.name}"
            raise Unprocessable(f"{path[:200]}: the schema has no such field, or it is there twice", field=path[:200])
    # Without regard to nulls of the struct itself, whose fields do not count.
    present = None if not values.null_count else _mask(values.is_valid())
    columns = []
    for child in node.children:
        path = f"{at}.{child.name}" if at else child.name
        below: list[Fault] = []
        column = _field(values, child, path, below)
        columns.append(column)
        for bad, misfit in below:
            rows = bad if present is None else bad & present
            if rows.any():
                misfit.within(child.name)
                faults.append((rows, misfit))
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(node.arrow), mask=mask)


def _field(values: pa.StructArray, child: Child, path: str, faults: list[Fault]) -> pa.Array:
    if values.type.get_field_index(child.name) < 0:
        column = pa.nulls(len(values), child.node.arrow)
    else:
        column = _taken(values.field(child.name), child.node, path, faults)
    if not child.nullable and column.null_count and child.required:
        faults.append((_mask(column.is_null()), Misfit(Reason.IS_NULL)))
    return column


def _nested(values: pa.Array, node: Node, at: str, faults: list[Fault]) -> pa.Array:
    is_map = pa.types.is_map(node.arrow)
    if pa.types.is_map(values.type) != is_map or not hasattr(values, "values"):
        raise _other_type(values, node, at)
    if not is_map and not pa.types.is_list(values.type):
        try:
            values = values.cast(pa.list_(values.type.value_type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise _other_type(values, node, at) from None
    if is_map and not (pa.types.is_string(values.type.key_type) or pa.types.is_large_string(values.type.key_type)):
        raise _other_type(values, node, at)
    below: list[Fault] = []
    [child] = node.children[:1]
    items = _taken(values.items if is_map else values.values, child.node, f"{at}[]", below)
    if not child.nullable and items.null_count:
        below.append((_mask(items.is_null()), Misfit(Reason.IS_NULL)))
    ends = values.offsets.to_numpy()
    for bad, misfit in below:
        sums = np.concatenate(([0], np.cumsum(bad)))
        misfit.within("[]")
        faults.append(((sums[ends[1:]] > sums[ends[:-1]]) & _mask(values.is_valid()), misfit))
    return with_items(values, items, node.arrow)


def _leaf(values: pa.Array, node: Node, at: str, faults: list[Fault]) -> pa.Array:
    kind = node.arrow
    if values.type != kind:
        if not _may_become(values.type, kind):
            raise _other_type(values, node, at)
        values = _cast(values, kind, faults)
    if kind in _BOUNDS:
        first, last, numbers = _BOUNDS[kind]
        outside = _outside(values.view(numbers), first, last)
        if outside.any():
            faults.append((outside, Misfit(Reason.RANGE)))
    return values


def _may_become(sent: pa.DataType, kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return bool(pa.types.is_integer(sent) or pa.types.is_floating(sent) or pa.types.is_decimal(sent))
    if pa.types.is_floating(kind):
        return bool(pa.types.is_integer(sent) or pa.types.is_floating(sent))
    if pa.types.is_decimal(kind):
        # Doubles would be rounded.
        return bool(pa.types.is_integer(sent) or pa.types.is_decimal(sent))
    if pa.types.is_string(kind):
        return bool(pa.types.is_large_string(sent) or pa.types.is_string_view(sent))
    if pa.types.is_binary(kind):
        return bool(
            pa.types.is_large_binary(sent) or pa.types.is_binary_view(sent) or pa.types.is_fixed_size_binary(sent)
        )
    if pa.types.is_timestamp(kind):
        return bool(pa.types.is_timestamp(sent)) and sent.tz is not None
    return bool(pa.types.is_date(kind) and pa.types.is_date(sent))


def _cast(values: pa.Array, kind: pa.DataType, faults: list[Fault]) -> pa.Array:
    """Return values of another type; what is not the same is a fault, and null."""
    if pa.types.is_integer(values.type) and pa.types.is_decimal(kind):
        # Arrow asks for as many digits as the whole type has.
        values = values.cast(pa.decimal128(38, 0))
    is_plain = not (pa.types.is_decimal(values.type) or pa.types.is_decimal(kind))
    if is_plain and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        numbers = values.fill_null(0).to_numpy()
        made, same = _numbers(numbers, kind.to_pandas_dtype())
    else:
        try:
            return values.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            made, same = None, np.fromiter((_is_exact(value, kind) for value in values), np.bool_, len(values))
    bad = ~same & _mask(values.is_valid())
    if bad.any():
        faults.append((bad, Misfit(Reason.RANGE)))
    gone = bad | _mask(values.is_null())
    if made is not None:
        return pa.array(made, kind, mask=gone)
    return without(values, gone).cast(kind)


def _numbers(sent: NDArray[Any], to: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Numbers as others of NumPy's types, and which ones are the same."""
    with np.errstate(all="ignore"):
        if issubclass(to, np.integer):
            # All values of 64 bits are in these bounds, and 2^63 as a double is not.
            same = (sent >= -(2.0**63)) & (sent < 2.0**63) if sent.dtype.kind == "f" else sent == sent
            whole = np.where(same, sent, 0).astype(np.uint64 if sent.dtype.kind == "u" else np.int64)
            bounds = np.iinfo(to)
            same &= (whole == sent) & (whole <= bounds.max)
            if sent.dtype.kind != "u":
                same &= whole >= bounds.min
            return whole.astype(to), same
        made = sent.astype(to)
        if sent.dtype.kind == "f":
            return made, (made == sent) | np.isnan(sent)
        # Back from a double that is 2^63 or more, a number has no place.
        small = made < 2.0**63
        return made, small & (np.where(small, made, 0).astype(sent.dtype) == sent)


def _is_exact(value: Any, kind: pa.DataType) -> bool:
    try:
        return not value.is_valid or value.cast(kind).is_valid
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False


def _outside(values: pa.Array, first: int, last: int) -> NDArray[np.bool_]:
    low, high = pc.less(values, first), pc.greater(values, last)
    return _mask(pc.or_(low, high).fill_null(False))


def _mask(values: pa.BooleanArray) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return mask
