"""The columns of all versions of a schema: joined, and values of one version brought into them.

Columns are only added. A field whose type changes has a second column, whose name says the version (`amount_v3`). A
field that was renamed (an alias of Avro, a number of Protobuf) stands in the columns of all its names, so whoever reads
the earlier one goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from deltamq.mq.errors import Conflict
from deltamq.tables.typed.node import Child, Node

#: For each path of a struct, names that stand for the same field.
Names = Mapping[str, Mapping[str, frozenset[str]]]


class TypedColumns(NamedTuple):
    """The columns of some bodies, a row for each."""

    #: Of the codec's `value_type`.
    value: pa.StructArray
    #: Of `INVALID_TYPE`; None: every body fits.
    invalid: pa.StructArray | None = None
    #: JSON texts: what did not fit in mode `rescue`; None: every body fits.
    rescued: pa.StringArray | None = None
    #: Whether a body names a schema that is not known here: newer metadata may have it.
    is_behind: bool = False


# Types.


def with_version(columns: pa.StructType, added: pa.StructType, number: int) -> pa.StructType:
    """Return the columns with those of version `number`, also within structs, lists and maps (SPEC TYPE-12).

    A field of another type becomes a second column.

    Raises
    ------
    Conflict
        `schema_conflict`: its name is another field's, or differs from it in upper and lower case only.
    """
    return _joined(columns, added, "", number)


def _joined(a: pa.DataType, b: pa.DataType, at: str, number: int) -> pa.DataType:
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return _joined_structs(a, b, at, number)
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(_joined(a.value_type, b.value_type, f"{at}[]", number))
    if pa.types.is_map(a) and pa.types.is_map(b):
        return pa.map_(a.key_type, _joined(a.item_type, b.item_type, f"{at}[]", number))
    if a != b:
        raise _conflict(at, f"is {_shown(b)} here and {_shown(a)} in the topic's columns; keep its type, or rename it")
    return a


def _joined_structs(a: pa.StructType, b: pa.StructType, at: str, number: int) -> pa.StructType:
    fields = {field.name: field.type for field in a}
    for field in b:
        path = f"{at}.{field.name}" if at else field.name
        column = column_of(fields, field, b)
        if column is None or column not in fields:
            column = _free_name(fields, field.name, path, number)
            fields[column] = field.type
        else:
            fields[column] = _joined(fields[column], field.type, path, number)
    return pa.struct(list(fields.items()))


def column_of(fields: Mapping[str, pa.DataType], field: pa.Field, siblings: pa.StructType) -> str | None:
    """Return the column that takes a field: of its name, or of one of its versions; None: no column does."""
    if field.name in fields and _is_alike(fields[field.name], field.type):
        return str(field.name)
    start = f"{field.name}_v"
    for name, kind in fields.items():
        is_version = name.startswith(start) and name[len(start) :].isdecimal()
        if is_version and siblings.get_field_index(name) < 0 and _is_alike(kind, field.type):
            return name
    return None


def _is_alike(a: pa.DataType, b: pa.DataType) -> bool:
    if pa.types.is_struct(a):
        return bool(pa.types.is_struct(b))
    if pa.types.is_list(a):
        return pa.types.is_list(b) and _is_alike(a.value_type, b.value_type)
    if pa.types.is_map(a):
        return pa.types.is_map(b) and _is_alike(a.item_type, b.item_type)
    return bool(a == b)


def _free_name(fields: Mapping[str, pa.DataType], name: str, path: str, number: int) -> str:
    taken = {known.lower() for known in fields}
    if name.lower() not in taken:
        return name
    second = f"{name}_v{number}"
    if second.lower() in taken:
        raise _conflict(path, f"changes its type, and its second column {second} is another field's; rename it")
    return second


def _conflict(at: str, text: str) -> Conflict:
    return Conflict(f"schema: {at} {text}", code="schema_conflict", field="schema", extra={"column": at})


def _shown(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= 100 else f"{text[:100]}..."


class Columns(NamedTuple):
    """The columns of some versions, and the names that stand for one field in them."""

    value_type: pa.StructType
    names: Names


def columns_of(versions: Sequence[tuple[int, Node]]) -> Columns:
    """Return the columns of versions, given by number and tree, ascending."""
    kind = pa.struct([])
    for number, root in versions:
        kind = with_version(kind, root.arrow, number)
    return Columns(kind, same_fields([root for _, root in versions]))


# Names.


def same_fields(roots: Sequence[Node]) -> Names:
    """Return the names that stand for one field in some versions, by aliases and by numbers."""
    pairs: dict[str, set[tuple[str, str]]] = {}
    children: dict[str, dict[int, set[str]]] = {}
    for root in roots:
        _collect(root, "", pairs, children)
    for at, by_number in children.items():
        for names in by_number.values():
            pairs.setdefault(at, set()).update((a, b) for a in names for b in names if a != b)
    return {at: _groups(some) for at, some in pairs.items() if some}


def _collect(
    node: Node, at: str, pairs: dict[str, set[tuple[str, str]]], children: dict[str, dict[int, set[str]]]
) -> None:
    for child in node.children:
        pairs.setdefault(at, set()).update((alias, child.name) for alias in child.aliases)
        if child.number:
            children.setdefault(at, {}).setdefault(child.number, set()).add(child.name)
        _collect(child.node, _below(at, child), pairs, children)


def _below(at: str, child: Child) -> str:
    return f"{at}.{child.name}" if child.name else at


def _groups(pairs: set[tuple[str, str]]) -> dict[str, frozenset[str]]:
    groups: dict[str, frozenset[str]] = {}
    for a, b in pairs:
        group = groups.get(a, frozenset((a,))) | groups.get(b, frozenset((b,)))
        groups.update(dict.fromkeys(group, group))
    return groups


# Values.


def fitted(values: pa.Array, kind: pa.DataType, names: Names, at: str = "") -> pa.Array:
    """Return values of one version in the columns of all; what the version does not have is null.

    No value is copied, nor changed.
    """
    if values.type == kind:
        return values
    if pa.types.is_struct(kind):
        return _fitted_struct(values, kind, names, at)
    if pa.types.is_list(kind):
        return with_items(values, fitted(values.values, kind.value_type, names, at), kind)
    assert pa.types.is_map(kind), "the columns of all versions have every type of each"
    return with_items(values, fitted(values.items, kind.item_type, names, at), kind)


def with_items(values: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists or maps of a type with other elements in their places; nothing else of them changes."""
    if pa.types.is_map(kind):
        keys = values.keys.cast(kind.key_type)
        items = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], values.null_count, values.offset, [items])


def _fitted_struct(values: pa.StructArray, kind: pa.StructType, names: Names, at: str) -> pa.StructArray:
    fields = {field.name: field.type for field in kind}
    arrays: dict[str, pa.Array] = {}
    for position, field in enumerate(values.type):
        column = column_of(fields, field, values.type)
        assert column is not None, "the columns of all versions have every field of each"
        arrays[column] = fitted(values.field(position), fields[column], names, f"{at}.{field.name}")
    for group in {names[at][name] for name in arrays.keys() & names.get(at, {}).keys()} if at in names else ():
        _fill_renamed(arrays, fields, group)
    columns = [arrays[name] if name in arrays else pa.nulls(len(values), of) for name, of in fields.items()]
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _fill_renamed(arrays: dict[str, pa.Array], fields: Mapping[str, pa.DataType], group: frozenset[str]) -> None:
    present = [name for name in fields if name in arrays and name in group]
    for name in group & fields.keys():
        if name not in arrays and len(present) == 1 and fields[name] == fields[present[0]]:
            arrays[name] = arrays[present[0]]
