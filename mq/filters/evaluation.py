"""What a condition says about one message, in SQL's three-valued logic: True, False, or None for unknown (NULL).

Headers, key and tag are texts. Beside a number, a text counts as a number if all of it is one as `NUMBER_PATTERN` says
(a double, finite), else as NULL; beside TRUE or FALSE it counts as one if it is the word `true` or `false` in any case.
Calculations that have no finite result, division by zero among them, are NULL.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from deltamq.mq.filters.condition import (
    And,
    Arithmetic,
    Column,
    Comparison,
    Condition,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Number,
    Operator,
    Or,
    Sign,
    Text,
    Truth,
    Value,
    ValueKind,
    kind_of,
    matches_like,
)

#: Texts that are numbers; the pattern means the same to Python and to Arrow.
NUMBER_PATTERN: Final = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_NUMBER: Final = re.compile(NUMBER_PATTERN)
_WORDS: Final = {"true": True, "false": False}
_COMPARE: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.AT_MOST: operator.le,
    Operator.GREATER: operator.gt,
    Operator.AT_LEAST: operator.ge,
}
_CALCULATE: Final[Mapping[Sign, Callable[[float, float], float]]] = {
    Sign.PLUS: operator.add,
    Sign.MINUS: operator.sub,
    Sign.TIMES: operator.mul,
    Sign.DIVIDE: operator.truediv,
}


class Fields(msgspec.Struct, frozen=True):
    """What a filter may ask of a message."""

    key: str | None = None
    tag: str | None = None
    headers: Mapping[str, str | None] | None = None


def evaluate(condition: Condition, message: Fields) -> bool | None:
    """Whether the condition holds for a message; None if that is unknown. A filter takes only messages with True."""
    match condition:
        case Truth(value):
            return value
        case Not(inner):
            result = evaluate(inner, message)
            return None if result is None else not result
        case And(conditions):
            return _first(False, [evaluate(part, message) for part in conditions])
        case Or(conditions):
            return _first(True, [evaluate(part, message) for part in conditions])
        case IsNull(inner):
            return value_of(inner, kind_of(inner), message) is None
        case In(left, items):
            return _first(True, [_compare(Operator.EQUAL, left, item, message) for item in items])
        case Like(inner, pattern):
            text = _text_of(inner, message)
            return None if text is None else matches_like(text, pattern)
        case Comparison(how, left, right):
            return _compare(how, left, right, message)


def _first(decisive: bool, results: list[bool | None]) -> bool | None:
    """Return `decisive` if it is among the results, else None if that is, else the opposite."""
    if decisive in results:
        return decisive
    return None if None in results else not decisive


def _compare(how: Operator, left: Value, right: Value, message: Fields) -> bool | None:
    kind = kind_of(left, right)
    first, second = value_of(left, kind, message), value_of(right, kind, message)
    return None if first is None or second is None else _COMPARE[how](first, second)


def value_of(value: Value, kind: ValueKind, message: Fields) -> str | float | bool | None:
    """Return a value as a text, a number or a boolean; None for NULL."""
    match kind:
        case ValueKind.NUMBER:
            return _number_of(value, message)
        case ValueKind.BOOLEAN:
            return _truth_of(value, message)
        case ValueKind.TEXT:
            return _text_of(value, message)


def _text_of(value: Value, message: Fields) -> str | None:
    match value:
        case Text(text):
            return text
        case Column():
            return message.key if value is Column.KEY else message.tag
        case Header(name):
            return (message.headers or {}).get(name)
        case Truth(None):
            return None
        case _:
            raise AssertionError(f"{value} is not compared as a text")


def _number_of(value: Value, message: Fields) -> float | None:
    match value:
        case Number(number):
            return number
        case Arithmetic(sign, left, right):
            return _calculated(sign, _number_of(left, message), _number_of(right, message))
        case _:
            text = _text_of(value, message)
            if text is None or _NUMBER.fullmatch(text) is None:
                return None
            return _finite(float(text))


def _calculated(sign: Sign, left: float | None, right: float | None) -> float | None:
    if left is None or right is None or (sign is Sign.DIVIDE and right == 0):
        return None
    return _finite(_CALCULATE[sign](left, right))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _truth_of(value: Value, message: Fields) -> bool | None:
    if isinstance(value, Truth):
        return value.value
    text = _text_of(value, message)
    # Arrow's lower case of ASCII is what the columns are compared by, so no other letters count here.
    return _WORDS.get(text.lower()) if text is not None and text.isascii() else None
