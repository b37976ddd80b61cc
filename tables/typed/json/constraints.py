"""What a JSON Schema asks of values beside their type: `minimum`, `pattern`, `enum` and so on (SPEC TYPE-46).

The values are judged as columns, so the compiled decoder and its plain twin share this, and so do values that are sent
as Arrow. A text's pattern is read by RE2, whose time is bounded whatever the pattern is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.tables.typed.columns import with_items
from deltamq.tables.typed.json.text import writer_of
from deltamq.tables.typed.json.value import converter, parsed
from deltamq.tables.typed.misfit import Budget, Misfit, Reason, place
from deltamq.tables.typed.node import Constraint, Node, invalid_schema, with_constraints
from deltamq.tables.typed.rows import rows_of, without

#: Characters of a constraint in a reason.
_SHOWN_CHARS: Final = 60
#: Whole numbers that a double has exactly.
_EXACT: Final = 2**53
_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1

_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
#: The constraints that values of a form can break; for other types, JSON Schema passes them over.
_OF_FORM: Final[Mapping[str, tuple[str, ...]]] = {
    "whole": _NUMBERS,
    "real": _NUMBERS,
    "string": ("minLength", "maxLength", "pattern"),
    "list": ("minItems", "maxItems", "uniqueItems"),
    "map": ("minProperties", "maxProperties"),
}
_OPEN: Final[Mapping[str, str]] = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
#: How texts of JSON begin, by their types.
_STARTS: Final[Mapping[str, str]] = {"object": "{", "array": "[", "string": '"', "boolean": "tf", "null": "n"}
_LEAVES: Final = frozenset(("boolean", "whole", "real", "string", "date", "timestamp"))


# A schema's constraints.


def constrained(node: Node, schema: Mapping[str, Any], at: str) -> Node:
    """Return a node with the constraints that its schema has for values of its form.

    Raises
    ------
    Unprocessable
        `invalid_schema`: a constraint's value is none, or a pattern is not one that can be read; names the field.
    """
    found = []
    for word in _OF_FORM.get(node.form, ()):
        # Draft 4: `exclusiveMinimum: true` says of what kind `minimum` is.
        if word in schema and not (word in _OPEN.values() and isinstance(schema[word], bool)):
            is_open = schema.get(_OPEN.get(word, "")) is True
            value = _value(word, schema[word], at)
            if value is not False:  # uniqueItems
                found.append(Constraint(_OPEN[word] if is_open else word, value))
    starts = starts_of(schema) if node.form == "json" else None
    if starts is not None:
        found.append(Constraint("type", starts))
    for word in ("enum", "const") if node.form in _LEAVES else ():
        if word in schema:
            allowed = schema[word] if word == "enum" else [schema[word]]
            if not isinstance(allowed, list):
                raise invalid_schema(f"{at or 'it'} has an `enum` that is no list")
            found.append(Constraint(word, _allowed(allowed, node)))
    return with_constraints(node, found) if found else node


def starts_of(schema: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the types of a text of JSON that its first character shows; None if that does not show them."""
    kinds = schema.get("type")
    names = tuple(kinds) if isinstance(kinds, list) else (kinds,)
    return names if all(isinstance(name, str) and name in _STARTS for name in names) else None


def _value(word: str, value: Any, at: str) -> Any:
    if word == "pattern":
        return _pattern(value, at)
    if isinstance(value, bool) or word == "uniqueItems":
        is_right = isinstance(value, bool) and word == "uniqueItems"
    elif not isinstance(value, int | float) or not abs(value) < math.inf:
        is_right = False
    else:
        is_right = (value > 0 or word != "multipleOf") if word in _NUMBERS else value >= 0 and int(value) == value
    if not is_right:
        raise invalid_schema(f"{at or 'it'} has a `{word}` that JSON Schema does not allow")
    return value


def _pattern(text: Any, at: str) -> str:
    """Return a pattern of ECMA 262 as RE2 writes it."""
    if isinstance(text, str):
        pattern = re.sub(r"\\(?:u\{?([0-9a-fA-F]{1,6})\}?|.)", _escape, text, flags=re.DOTALL)
        try:
            pc.match_substring_regex(pa.array([""]), pattern)
        except (pa.ArrowInvalid, UnicodeEncodeError):
            pass
        else:
            return pattern
    raise invalid_schema(
        f"{at or 'it'} has a `pattern` that cannot be checked; use one without look-around and references to groups"
    )


def _escape(found: re.Match[str]) -> str:
    return rf"\x{{{found[1]}}}" if found[1] else found[0]


def _allowed(values: list[Any], node: Node) -> pa.Array:
    """The values of an `enum` that the column can have."""
    convert = converter(node)
    have = []
    for value in values:
        try:
            if value is not None:
                have.append(convert(parsed(json.dumps(value).encode()), Budget(0)))
        except Misfit:
            continue
    return _even(pa.array(have, node.arrow))


def _even(values: pa.Array) -> pa.Array:
    """Values in which -0.0 is 0.0."""
    return pc.add(values, 0.0) if pa.types.is_floating(values.type) else values


# Values.


class Break(msgspec.Struct):
    """Rows whose value breaks a constraint in one place."""

    rows: NDArray[np.int64]
    misfit: Misfit
    #: What is left out of each row, as JSON, if it was asked for.
    sent: Sequence[str] = ()

    def within(self, part: str) -> Break:
        """Put the name of what contains the place in front of its path."""
        self.misfit.within(part)
        return self

    def some(self, chosen: NDArray[Any], rows: NDArray[np.int64]) -> Break:
        """Return the break of the chosen rows, which have other numbers in what contains them."""
        sent = [self.sent[at] for at in np.arange(len(self.rows))[chosen]] if self.sent else ()
        return Break(rows, self.misfit.copy(), sent)


def broken(values: pa.StructArray, root: Node, *, keeps: bool = False) -> tuple[pa.StructArray, list[Break]]:
    """Return values without the fields that break a constraint, and what breaks one, by places.

    Parameters
    ----------
    values
        The columns of a schema.
    root
        Its tree.
    keeps
        Whether the breaks have what is left out, as JSON.
    """
    values, own, inner = _Judge(keeps).judged(values, root)
    assert not own, "nothing is asked of a body as a whole"
    return values, inner


class _Judge:
    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps

    def judged(self, values: pa.Array, node: Node) -> tuple[pa.Array, list[Break], list[Break]]:
        """Return values, those that break a constraint themselves, and those in which fields do, left out."""
        if not node.is_constrained:
            return values, [], []
        own: list[Break] = []
        inner: list[Break] = []
        if node.form == "struct":
            values, inner = self._struct(values, node)
        elif node.form in ("list", "map"):
            values, own, inner = self._list(values, node)
        for constraint in node.constraints:
            rows = np.flatnonzero(_BREAKS[constraint.word](values, constraint.value) & _valid(values))
            if len(rows):
                own.append(Break(rows, _misfit(constraint)))
        return values, own, inner

    def _struct(self, values: pa.StructArray, node: Node) -> tuple[pa.StructArray, list[Break]]:
        breaks: list[Break] = []
        columns = []
        for position, child in enumerate(node.children):
            column, own, inner = self.judged(_within(values, position), child.node)
            if own:
                gone = np.zeros(len(values), np.bool_)
                for one in own:
                    gone[one.rows] = True
                    if self._keeps:
                        left_out = rows_of(column.take(pa.array(one.rows)))
                        one.sent = list(map(writer_of(column.type), left_out))
                column = without(column, gone)
            columns.append(column)
            breaks += [one.within(child.name) for one in (*own, *inner)]
        if not breaks:
            return values, []
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(columns, fields=list(values.type), mask=mask), breaks

    def _list(self, values: pa.Array, node: Node) -> tuple[pa.Array, list[Break], list[Break]]:
        is_map = node.form == "map"
        items = values.items if is_map else values.values
        changed, own, inner = self.judged(items, node.children[0].node)
        ends = values.offsets.to_numpy()
        names = values.keys if is_map else None
        if inner:
            values = with_items(values, changed, values.type)
        valid = _valid(values)
        return (
            values,
            [part for one in own for part in _by_place(one, ends, valid, names)],
            [part for one in inner for part in _by_place(one, ends, valid, names)],
        )


def _within(values: pa.StructArray, position: int) -> pa.Array:
    """A field's column, null where the struct is."""
    return values.flatten()[position] if values.null_count else values.field(position)


def _by_place(
    broke: Break, ends: NDArray[Any], valid: NDArray[np.bool_], names: pa.StringArray | None
) -> Iterator[Break]:
    """A break of elements as those of their lists or maps, one for each place."""
    rows = np.searchsorted(ends, broke.rows, side="right") - 1
    inside = (rows >= 0) & (rows < len(valid))
    inside[inside] &= valid[rows[inside]]
    if names is None:
        places = broke.rows - ends[np.where(inside, rows, 0)]
        parts = [(part, inside & (places == part)) for part in np.unique(places[inside]).tolist()]
    else:
        keys = names.take(pa.array(broke.rows)).dictionary_encode()
        codes = keys.indices.to_numpy()
        parts = [(part, inside & (codes == code)) for code, part in enumerate(keys.dictionary.to_pylist())]
    for part, chosen in parts:
        if chosen.any():
            yield broke.some(chosen, rows[chosen]).within(place(part))


def _misfit(constraint: Constraint) -> Misfit:
    value = constraint.value.to_pylist() if isinstance(constraint.value, pa.Array) else constraint.value
    shown = json.dumps(value, ensure_ascii=False, default=str)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}..."
    return Misfit(Reason.CONSTRAINT, f"does not meet `{constraint.word}` of the schema: {shown}")


def _valid(values: pa.Array) -> NDArray[np.bool_]:
    return _bools(values.is_valid())


def _bools(values: pa.BooleanArray) -> NDArray[np.bool_]:
    bools: NDArray[np.bool_] = values.fill_null(False).to_numpy(zero_copy_only=False)
    return bools


# Constraints. Each function returns which values break it; what it says of null does not matter.

Breaks = Callable[[pa.Array, Any], NDArray[np.bool_]]


def _bound(values: pa.Array, limit: float | int, *, least: bool, open_: bool) -> NDArray[np.bool_]:
    outside = pc.less if least else pc.greater
    if pa.types.is_floating(values.type):
        if open_:
            outside = pc.less_equal if least else pc.greater_equal
        # A whole number that no double has is beyond all of them.
        bound = float(limit) if abs(limit) < 10**308 else math.inf if limit > 0 else -math.inf
        return _bools(outside(values, bound))
    exact = Fraction(limit)
    bound = (math.floor(exact) + 1 if open_ else math.ceil(exact)) if least else 0
    if not least:
        bound = math.ceil(exact) - 1 if open_ else math.floor(exact)
    if not _LEAST <= bound <= _MOST:
        return np.full(len(values), (bound > _MOST) == least, np.bool_)
    return _bools(outside(values, bound))


def _not_multiple(values: pa.Array, of: float | int) -> NDArray[np.bool_]:
    # A decimal fraction is meant as it is written.
    unit = Fraction(str(of))
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_integer(values.type):
        if unit.numerator > _MOST:
            return np.asarray(numbers != 0)
        return np.asarray(numbers % unit.numerator != 0)
    if unit.numerator < _EXACT and unit.denominator < _EXACT:
        # The quotient of two whole numbers is the double next to it: the one that its digits give.
        with np.errstate(all="ignore"):
            products = np.rint(numbers * unit.denominator / unit.numerator) * unit.numerator
            others = products / unit.denominator != numbers
            far = np.abs(products) >= _EXACT
    else:
        others, far = np.zeros(len(numbers), np.bool_), np.ones(len(numbers), np.bool_)
    for at in np.flatnonzero(far & np.isfinite(numbers)):
        others[at] = Fraction(repr(float(numbers[at]))) % unit != 0
    return np.asarray(others)


def _repeats(values: pa.ListArray, _asked: bool) -> NDArray[np.bool_]:
    items = values.flatten()
    if pa.types.is_nested(items.type):
        items = pa.array(list(map(repr, rows_of(items))), pa.string())
    codes = _even(items).dictionary_encode(null_encoding="encode").indices.to_numpy()
    lists = pc.list_parent_indices(values).to_numpy()
    pairs = lists * (int(codes.max(initial=0)) + 1) + codes
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    repeated = np.zeros(len(values), np.bool_)
    repeated[lists[first[counts > 1]]] = True
    return repeated


def _lengths(values: pa.Array) -> NDArray[Any]:
    if pa.types.is_string(values.type):
        lengths = pc.utf8_length(values)
    elif pa.types.is_map(values.type):
        return np.diff(values.offsets.to_numpy())
    else:
        lengths = pc.list_value_length(values)
    return np.asarray(lengths.fill_null(0).to_numpy(zero_copy_only=False))


def _is_short(values: pa.Array, least: int) -> NDArray[np.bool_]:
    return np.asarray(_lengths(values) < least)


def _is_long(values: pa.Array, most: int) -> NDArray[np.bool_]:
    return np.asarray(_lengths(values) > most)


def _is_none_of(values: pa.Array, allowed: pa.Array) -> NDArray[np.bool_]:
    return ~_bools(pc.is_in(_even(values), value_set=allowed))


def _is_other_type(values: pa.StringArray, kinds: tuple[str, ...]) -> NDArray[np.bool_]:
    starts = pa.array(list("".join(_STARTS[kind] for kind in kinds)), pa.string())
    return ~_bools(pc.is_in(pc.utf8_slice_codeunits(values, 0, 1), value_set=starts))


_BREAKS: Final[Mapping[str, Breaks]] = {
    "minimum": lambda values, limit: _bound(values, limit, least=True, open_=False),
    "maximum": lambda values, limit: _bound(values, limit, least=False, open_=False),
    "exclusiveMinimum": lambda values, limit: _bound(values, limit, least=True, open_=True),
    "exclusiveMaximum": lambda values, limit: _bound(values, limit, least=False, open_=True),
    "multipleOf": _not_multiple,
    "minLength": _is_short,
    "maxLength": _is_long,
    "pattern": lambda values, pattern: ~_bools(pc.match_substring_regex(values, pattern)),
    "minItems": _is_short,
    "maxItems": _is_long,
    "uniqueItems": _repeats,
    "minProperties": _is_short,
    "maxProperties": _is_long,
    "enum": _is_none_of,
    "const": _is_none_of,
    "type": _is_other_type,
}
