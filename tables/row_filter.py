"""Filters over message rows: one pass over columns for each term, without a Python object for each message.

    rows ── tag ──────────────── is_in ─┐
         └─ headers ─ map_lookup ─ = ───┴─ and ─ filter

A condition means the same as in `mq.filters.evaluation.evaluate`; tests compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.filters.condition import (
    And,
    Arithmetic,
    Comparison,
    Condition,
    Field,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Operator,
    Or,
    Pattern,
    Sign,
    Truth,
    Value,
    ValueKind,
    Wildcard,
    fields_of,
    kind_of,
)
from deltamq.mq.filters.evaluation import NUMBER_PATTERN, Fields, evaluate, value_of

#: A value for each row, or one for all of them.
_Datum: TypeAlias = pa.ChunkedArray | pa.Array | pa.Scalar

_NO_FIELDS: Final = Fields()
_NULL: Final = pa.scalar(None, pa.bool_())
_ARROW_TYPES: Final = {ValueKind.TEXT: pa.string(), ValueKind.NUMBER: pa.float64(), ValueKind.BOOLEAN: pa.bool_()}
_COMPARE: Final[Mapping[Operator, Callable[[_Datum, _Datum], _Datum]]] = {
    Operator.EQUAL: pc.equal,
    Operator.NOT_EQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.AT_MOST: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.AT_LEAST: pc.greater_equal,
}
_CALCULATE: Final[Mapping[Sign, Callable[[_Datum, _Datum], _Datum]]] = {
    Sign.PLUS: pc.add,
    Sign.MINUS: pc.subtract,
    Sign.TIMES: pc.multiply,
    Sign.DIVIDE: pc.divide,
}


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A client's filter: one of some tags, and a condition that must be true (SPEC CONS-3, CONS-9)."""

    #: None for messages with any tag, and without one.
    tags: pa.Array | None = None
    condition: Condition | None = None

    def matching(self, rows: pa.Table) -> pa.Table:
        """Return the rows of messages that pass."""
        masks: list[_Datum] = []
        if self.tags is not None:
            masks.append(pc.is_in(rows.column("tag"), value_set=self.tags))
        if self.condition is not None:
            masks.append(_Columns(rows).mask(self.condition))
        mask = reduce(pc.and_kleene, masks, pa.scalar(True))
        if isinstance(mask, pa.Scalar):
            return rows if mask.as_py() else rows.slice(0, 0)
        return rows.filter(mask, null_selection_behavior="drop")


class _Columns:
    """The fields of rows as columns, each made once."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._made: dict[tuple[Field, ValueKind], pa.ChunkedArray] = {}

    # Conditions.

    def mask(self, condition: Condition) -> _Datum:
        """Return for each row what `evaluate` returns for its message; a scalar if it is the same for all rows."""
        match condition:
            case Not(inner):
                return pc.invert(self.mask(inner))
            case And(conditions):
                return reduce(pc.and_kleene, map(self.mask, conditions))
            case Or(conditions):
                return reduce(pc.or_kleene, map(self.mask, conditions))
            case _:
                if next(fields_of(condition), None) is None:
                    return pa.scalar(evaluate(condition, _NO_FIELDS), pa.bool_())
                return self._test(condition)

    def _test(self, condition: Comparison | IsNull | In | Like | Truth) -> _Datum:
        match condition:
            case Comparison(operator, left, right):
                kind = kind_of(left, right)
                return _COMPARE[operator](self._value(left, kind), self._value(right, kind))
            case IsNull(value):
                return pc.is_null(self._value(value, kind_of(value)))
            case In():
                return self._in(condition)
            case Like(value, pattern):
                return _like(self._value(value, ValueKind.TEXT), pattern)
            case Truth(value):
                return pa.scalar(value, pa.bool_())

    def _in(self, condition: In) -> _Datum:
        items: dict[ValueKind, list[str | float | bool]] = {}
        has_null = False
        for item in condition.items:
            kind = kind_of(condition.value, item)
            plain = value_of(item, kind, _NO_FIELDS)
            if plain is None:
                has_null = True
            else:
                items.setdefault(kind, []).append(plain)
        masks = [_is_in(self._value(condition.value, kind), kind, plain) for kind, plain in items.items()]
        return reduce(pc.or_kleene, [*masks, _NULL] if has_null else masks)

    # Values.

    def _value(self, value: Value, kind: ValueKind) -> _Datum:
        if isinstance(value, Arithmetic):
            left, right = self._value(value.left, ValueKind.NUMBER), self._value(value.right, ValueKind.NUMBER)
            return _finite(_CALCULATE[value.sign](left, right))
        field = next(fields_of(value), None)
        if field is None:
            return pa.scalar(value_of(value, kind, _NO_FIELDS), _ARROW_TYPES[kind])
        return self._column(field, kind)

    def _column(self, field: Field, kind: ValueKind) -> pa.ChunkedArray:
        made = self._made.get((field, kind))
        if made is None:
            made = self._made[field, kind] = self._make(field, kind)
        return made

    def _make(self, field: Field, kind: ValueKind) -> pa.ChunkedArray:
        if kind is ValueKind.NUMBER:
            return _numbers(self._column(field, ValueKind.TEXT))
        if kind is ValueKind.BOOLEAN:
            return _truths(self._column(field, ValueKind.TEXT))
        if not isinstance(field, Header):
            return self._rows.column(field.value)
        # A name that stands twice has its last value, as in JSON.
        return pc.map_lookup(self._rows.column("headers"), pa.scalar(field.name, pa.string()), "last")


def _numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as numbers; null for other texts."""
    try:
        return _finite(pc.cast(texts, pa.float64()))
    except pa.ArrowInvalid:
        are_numbers = pc.match_substring_regex(texts, rf"\A(?:{NUMBER_PATTERN})\z")
        return _finite(pc.cast(pc.if_else(are_numbers, texts, pa.scalar(None, pa.string())), pa.float64()))


def _finite(numbers: _Datum) -> _Datum:
    """Return numbers without infinities and NaN, which Arrow makes of overflows and words."""
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def _truths(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as booleans; null for other texts."""
    lower = pc.ascii_lower(texts)
    is_false = pc.if_else(pc.equal(lower, "false"), pa.scalar(False), _NULL)
    return pc.if_else(pc.equal(lower, "true"), pa.scalar(True), is_false)


def _is_in(values: _Datum, kind: ValueKind, items: list[str | float | bool]) -> _Datum:
    """Return for each value whether it is among the items; null for null, where Arrow's kernel returns False."""
    if kind is ValueKind.NUMBER:
        # -0.0 becomes 0.0: they are equal, but not to a hash table.
        values = pc.add(values, 0.0)
    mask = pc.is_in(values, value_set=pa.array(items, _ARROW_TYPES[kind]))
    return pc.if_else(pc.is_valid(values), mask, _NULL)


def _like(texts: _Datum, pattern: Pattern) -> _Datum:
    match pattern:
        case (str(text),):
            return pc.equal(texts, text)
        case (str(text), Wildcard.ANY_TEXT):
            return pc.starts_with(texts, text)
        case (Wildcard.ANY_TEXT, str(text)):
            return pc.ends_with(texts, text)
        case (Wildcard.ANY_TEXT, str(text), Wildcard.ANY_TEXT):
            return pc.match_substring(texts, text)
        case _:
            # RE2 looks at each byte once, whatever the pattern.
            return pc.match_substring_regex(texts, r"(?s)\A" + "".join(map(_regex, pattern)) + r"\z")


def _regex(part: str | Wildcard) -> str:
    if isinstance(part, str):
        return re.escape(part)
    return ".*" if part is Wildcard.ANY_TEXT else "."
