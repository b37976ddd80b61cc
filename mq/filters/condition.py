"""A parsed filter: a tree of conditions over values, and the patterns of LIKE.

    region = 'eu' AND NOT amount IN (1, 2)

    And ── Comparison(EQUAL) ── Header region, Text eu
        └─ Not ── In ── Header amount, Number 1, Number 2

A condition is true, false, or unknown (NULL), as in SQL. Only what cannot be said by something else has a node:
`a BETWEEN 1 AND 2` is `a >= 1 AND a <= 2`, `IS NOT NULL` is `NOT ... IS NULL`, and `-a` is `0 - a`.

In a pattern `%` stands for any text, `_` for any one character. It is matched in one pass over the text: the match
keeps the set of all positions in the pattern where it may be, as the bits of an integer. So its time grows with the
text, whatever the pattern: nothing is ever tried a second time.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

#: Patterns that stay prepared; a process sees few.
_PREPARED_MAX: Final = 256


class Wildcard(enum.Enum):
    """What a pattern leaves open."""

    ANY_TEXT = "%"
    ANY_CHARACTER = "_"


#: Literal texts, never empty and never side by side, and wildcards.
Pattern: TypeAlias = tuple[str | Wildcard, ...]


def parse_like(text: str, escape: str | None) -> Pattern | None:
    """Return the pattern of a text; None if an escape character is not followed by a wildcard or by itself."""
    parts: list[str | Wildcard] = []
    characters = iter(text)
    for character in characters:
        if character == escape:
            character = next(characters, "")
            if character not in ("%", "_", escape):
                return None
            _append_literal(parts, character)
        elif character not in ("%", "_"):
            _append_literal(parts, character)
        elif character == "_" or parts[-1:] != [Wildcard.ANY_TEXT]:
            parts.append(Wildcard(character))
    return tuple(parts)


def _append_literal(parts: list[str | Wildcard], character: str) -> None:
    if parts and isinstance(parts[-1], str):
        parts[-1] += character
    else:
        parts.append(character)


def like_text(pattern: Pattern) -> tuple[str, str | None]:
    """Return a text and an escape character that `parse_like` makes the pattern of."""
    escape = "\\" if any(isinstance(part, str) and ("%" in part or "_" in part) for part in pattern) else None
    return "".join(part.value if isinstance(part, Wildcard) else _escaped(part, escape) for part in pattern), escape


def _escaped(literal: str, escape: str | None) -> str:
    if escape is None:
        return literal
    return "".join(escape + character if character in ("%", "_", escape) else character for character in literal)


class _Positions(msgspec.Struct, frozen=True):
    """The positions in a pattern, one before each character and one at its end, each as one bit."""

    #: Positions that a given character leads on from; `anything` has the ones that any character does.
    by_character: dict[str, int]
    anything: int
    #: Positions that any text leads back to.
    loops: int
    end: int


@lru_cache(maxsize=_PREPARED_MAX)
def _positions(pattern: Pattern) -> _Positions:
    by_character: dict[str, int] = {}
    anything = loops = 0
    position = 1
    for part in pattern:
        if part is Wildcard.ANY_TEXT:
            loops |= position
        elif part is Wildcard.ANY_CHARACTER:
            anything |= position
            position <<= 1
        else:
            for character in part:
                by_character[character] = by_character.get(character, 0) | position
                position <<= 1
    return _Positions(by_character, anything, loops, position)


def matches_like(text: str, pattern: Pattern) -> bool:
    """Whether a text fits the pattern as a whole; case matters."""
    positions = _positions(pattern)
    at = 1
    for character in text:
        at = ((at & (positions.by_character.get(character, 0) | positions.anything)) << 1) | (at & positions.loops)
        if not at:
            return False
    return bool(at & positions.end)


class Operator(enum.Enum):
    """How two values are compared."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


class ValueKind(enum.Enum):
    """The kind of value as which two values are compared."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"


class Sign(enum.Enum):
    """How a number is made of two."""

    PLUS = "+"
    MINUS = "-"
    TIMES = "*"
    DIVIDE = "/"


class Column(enum.Enum):
    """A field that every message has beside its headers; its value is the name of the column of message rows."""

    KEY = "key"
    TAG = "tag"


class Header(msgspec.Struct, frozen=True):
    """The value of a message's header; NULL if the message does not have it."""

    name: str


class Text(msgspec.Struct, frozen=True):
    """A text in quotes."""

    value: str


class Number(msgspec.Struct, frozen=True):
    """A number: finite, and never -0.0."""

    value: float


class Truth(msgspec.Struct, frozen=True):
    """TRUE, FALSE, or NULL (None); a value and a condition."""

    value: bool | None


class Arithmetic(msgspec.Struct, frozen=True):
    """A number made of two; NULL if one of them is, and if the result is not finite."""

    sign: Sign
    left: Value
    right: Value


class Comparison(msgspec.Struct, frozen=True):
    """Two values compared: as numbers or as booleans if one of them is one, else as texts by their code points."""

    operator: Operator
    left: Value
    right: Value


class IsNull(msgspec.Struct, frozen=True):
    """Whether a value is NULL; never unknown itself."""

    value: Value


class In(msgspec.Struct, frozen=True):
    """Whether a value equals one of some literals, each compared as by `Comparison`."""

    value: Value
    items: tuple[Literal, ...]


class Like(msgspec.Struct, frozen=True):
    """Whether a text fits a pattern."""

    value: Value
    pattern: Pattern


class Not(msgspec.Struct, frozen=True):
    """The opposite; unknown stays unknown."""

    condition: Condition


class And(msgspec.Struct, frozen=True):
    """False if one of the conditions is, else unknown if one is. Made by `all_of`."""

    conditions: tuple[Condition, ...]


class Or(msgspec.Struct, frozen=True):
    """True if one of the conditions is, else unknown if one is. Made by `any_of`."""

    conditions: tuple[Condition, ...]


Field: TypeAlias = Header | Column
Literal: TypeAlias = Text | Number | Truth
Value: TypeAlias = Field | Literal | Arithmetic
Condition: TypeAlias = And | Or | Not | Comparison | IsNull | In | Like | Truth


def all_of(conditions: Iterable[Condition]) -> Condition:
    """Return the AND of one condition or more, without an AND directly inside an AND."""
    flat = tuple(part for node in conditions for part in (node.conditions if isinstance(node, And) else (node,)))
    return flat[0] if len(flat) == 1 else And(flat)


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Return the OR of one condition or more, without an OR directly inside an OR."""
    flat = tuple(part for node in conditions for part in (node.conditions if isinstance(node, Or) else (node,)))
    return flat[0] if len(flat) == 1 else Or(flat)


def kind_of(*values: Value) -> ValueKind:
    """Return as what these values are compared with each other."""
    if is_numeric(*values):
        return ValueKind.NUMBER
    return ValueKind.BOOLEAN if is_boolean(*values) else ValueKind.TEXT


def is_numeric(*values: Value) -> bool:
    """Whether one of these values is a number by itself."""
    return any(isinstance(value, Number | Arithmetic) for value in values)


def is_boolean(*values: Value) -> bool:
    """Whether one of these values is TRUE or FALSE."""
    return any(isinstance(value, Truth) and value.value is not None for value in values)


def fields_of(node: Condition | Value) -> Iterator[Field]:
    """Yield the headers and columns that a condition or a value depends on, with repeats."""
    if isinstance(node, Header | Column):
        yield node
    for part in _parts(node):
        yield from fields_of(part)


def _parts(node: Condition | Value) -> tuple[Condition | Value, ...]:
    match node:
        case And(conditions) | Or(conditions):
            return conditions
        case Not(condition):
            return (condition,)
        case Comparison(_, left, right) | Arithmetic(_, left, right):
            return (left, right)
        case IsNull(value) | In(value, _) | Like(value, _):
            return (value,)
        case _:
            return ()
