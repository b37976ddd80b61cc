"""Conditions of filters and messages for them, made by chance; conditions as text, for the parser and for SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import count

from hypothesis import strategies as st

from deltamq.mq.filters.condition import (
    And,
    Arithmetic,
    Column,
    Comparison,
    Condition,
    Field,
    Header,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Number,
    Operator,
    Or,
    Pattern,
    Sign,
    Text,
    Truth,
    Value,
    ValueKind,
    all_of,
    any_of,
    is_boolean,
    kind_of,
    like_text,
    parse_like,
)
from deltamq.mq.filters.evaluation import Fields

__all__ = ["FIELDS", "Witness", "conditions", "filter_text", "messages", "patterns", "texts"]

#: The fields that conditions ask for; one header is named like a column, one needs quotes, one has a keyword's name.
FIELDS: tuple[Field, ...] = (Column.KEY, Column.TAG, Header("a"), Header("key"), Header('b-"c'), Header("not"))
_WORDS = ["", "a", "ab", "abab", "A", "é", "%", "_", "\\", "b\na", "true", "FALSE", "tRuE", "falsey", "eu"]
_NUMBERS = ["5", "-5", "5.0", "1e3", ".5", "5.", "+5", "0", "-0", "00", "1e-3", "9007199254740993", "1e999"]


def texts() -> st.SearchStrategy[str]:
    """Texts, many of them numbers, booleans and wildcards."""
    short = st.text(alphabet="ab%_\\é'\"\n😀", max_size=6)
    numeric = st.text(alphabet="0159.+-e", max_size=6)
    return st.sampled_from([*_WORDS, *_NUMBERS]) | short | numeric


def messages(values: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[Fields]:
    """Messages with some of the fields."""
    some = st.none() | (texts() if values is None else values)
    names = st.sampled_from([field.name for field in FIELDS if isinstance(field, Header)] + ["other"])
    headers = st.none() | st.dictionaries(names, some, max_size=5)
    return st.builds(Fields, key=some, tag=some, headers=headers)


_numbers = st.builds(Number, st.sampled_from([0.0, 1.0, 5.0, -5.0, 0.5, 1000.0, 1e300, 2.0**53 - 1]))
_fields = st.sampled_from(FIELDS)
_nulls = st.just(Truth(None))
_truths = st.builds(Truth, st.sampled_from([True, False, None]))
_texts = st.builds(Text, texts())
_calculations = st.recursive(
    _fields | _numbers | _texts | _nulls,
    lambda inner: st.builds(Arithmetic, st.sampled_from(Sign), inner, inner),
    max_leaves=3,
)
_equalities = st.sampled_from([Operator.EQUAL, Operator.NOT_EQUAL])


def patterns() -> st.SearchStrategy[Pattern]:
    """Patterns of LIKE."""
    parsed = texts().map(lambda text: parse_like(text, None))
    escaped = st.text(alphabet="ab", max_size=3).map(lambda text: parse_like(f"{text}\\%%\\_", "\\"))
    return (parsed | escaped).filter(lambda pattern: pattern is not None).map(lambda pattern: pattern or ())


def _tests() -> st.SearchStrategy[Condition]:
    comparisons = st.builds(Comparison, st.sampled_from(Operator), _calculations, _calculations)
    truths = st.builds(Comparison, _equalities, _fields | _texts | _truths, _fields | _truths)
    lists = st.lists(_texts | _numbers | _nulls, min_size=1, max_size=4).map(tuple)
    mixed = st.lists(_texts | _numbers | _truths, min_size=1, max_size=4).map(tuple)
    return (
        comparisons
        | truths
        | st.builds(In, _calculations, lists)
        | st.builds(In, _fields, mixed)
        | st.builds(IsNull, _calculations | _truths)
        | st.builds(Like, _fields | _texts | _nulls, patterns())
        | _truths
    )


def conditions() -> st.SearchStrategy[Condition]:
    """Conditions of every form."""
    return st.recursive(
        _tests(),
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.lists(inner, min_size=2, max_size=3).map(all_of),
            st.lists(inner, min_size=2, max_size=3).map(any_of),
        ),
        max_leaves=6,
    )


# As text ------------------------------------------------------------------------------------------------------


def filter_text(condition: Condition) -> str:
    """The condition as a filter."""
    return _FilterText().condition(condition)


def _quoted(text: str, quote: str = "'") -> str:
    return quote + text.replace(quote, quote * 2) + quote


class _FilterText:
    """Writes filters; what SQLite says in another way is overridden there."""

    def condition(self, node: Condition) -> str:
        match node:
            case And(parts):
                return " AND ".join(map(self._part, parts))
            case Or(parts):
                return " OR ".join(map(self._part, parts))
            case Not(IsNull(value)):
                return f"{self.value(value, kind_of(value))} IS NOT NULL"
            case Not(In() as inner):
                return self.is_in(inner, "NOT IN")
            case Not(Like() as inner):
                return self.like(inner, "NOT LIKE")
            case Not(inner):
                return f"NOT {self._part(inner)}"
            case Comparison(operator, left, right):
                kind = kind_of(left, right)
                return f"{self.value(left, kind)} {operator.value} {self.value(right, kind)}"
            case IsNull(value):
                return f"{self.value(value, kind_of(value))} IS NULL"
            case In():
                return self.is_in(node, "IN")
            case Like():
                return self.like(node, "LIKE")
            case Truth():
                return self.literal(node)

    def _part(self, node: Condition) -> str:
        text = self.condition(node)
        return f"({text})" if isinstance(node, And | Or) else text

    def is_in(self, node: In, word: str) -> str:
        return f"{self.value(node.value, ValueKind.TEXT)} {word} ({', '.join(map(self.literal, node.items))})"

    def like(self, node: Like, word: str) -> str:
        text, escape = like_text(node.pattern)
        tail = "" if escape is None else f" ESCAPE {_quoted(escape)}"
        return f"{self.value(node.value, ValueKind.TEXT)} {word} {_quoted(text)}{tail}"

    def value(self, node: Value, kind: ValueKind) -> str:
        match node:
            case Arithmetic(sign, left, right):
                return f"({self.value(left, ValueKind.NUMBER)} {sign.value} {self.value(right, ValueKind.NUMBER)})"
            case Column() | Header():
                return self.field(node, kind)
            case _:
                return self.literal(node)

    def field(self, node: Field, kind: ValueKind) -> str:
        if isinstance(node, Column):
            return node.value
        if node.name == "a":
            return node.name
        return _quoted(node.name, '"') if len(node.name) % 2 else f"headers[{_quoted(node.name)}]"

    def literal(self, node: Literal) -> str:
        match node:
            case Text(text):
                return _quoted(text)
            case Number(number):
                return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
            case Truth(truth):
                return {True: "TRUE", False: "FALSE", None: "NULL"}[truth]


class Witness(_FilterText):
    """SQLite as a second opinion on what a condition says about messages.

    A field has a column of type TEXT and one of type REAL: SQLite itself makes numbers of the texts there that are
    numbers, and leaves the others texts.
    """

    def __init__(self) -> None:
        self._columns: dict[Field | Text, str] = {}
        self._names = count()

    def answers(self, condition: Condition, messages: Sequence[Fields]) -> list[bool | None]:
        """What SQLite says about each message."""
        said = self.condition(condition)
        connection = sqlite3.connect(":memory:")
        connection.execute("PRAGMA case_sensitive_like = ON")
        columns = [f"t{name} TEXT, n{name} REAL" for name in self._columns.values()]
        connection.execute(f"CREATE TABLE m ({', '.join(['id INTEGER', *columns])})")
        for number, message in enumerate(messages):
            row = [number, *self._row(message)]
            connection.execute(f"INSERT INTO m VALUES ({', '.join('?' * len(row))})", row)
        found = connection.execute(f"SELECT {said} FROM m ORDER BY id").fetchall()
        connection.close()
        return [None if one is None else bool(one) for (one,) in found]

    def _row(self, message: Fields) -> Iterator[str | None]:
        for source in self._columns:
            match source:
                case Text(text):
                    value: str | None = text
                case Header(name):
                    value = (message.headers or {}).get(name)
                case Column():
                    value = message.key if source is Column.KEY else message.tag
            yield value
            yield value

    def field(self, node: Field | Text, kind: ValueKind) -> str:
        name = self._columns.setdefault(node, str(len(self._columns)))
        match kind:
            case ValueKind.TEXT:
                return f"t{name}"
            case ValueKind.BOOLEAN:
                return f"CASE lower(t{name}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 END"
            case ValueKind.NUMBER:
                return f"CASE WHEN typeof(n{name}) = 'real' AND abs(n{name}) < 9e999 THEN n{name} END"

    def value(self, node: Value, kind: ValueKind) -> str:
        if isinstance(node, Arithmetic):
            text = super().value(node, kind)
            return f"CASE WHEN abs({text}) < 9e999 THEN {text} END"
        if isinstance(node, Text):
            return self.field(node, kind)
        return super().value(node, kind)

    def is_in(self, node: In, word: str) -> str:
        """SQLite compares by the types of the columns, so items of one kind have an IN of their own."""
        by_kind: dict[ValueKind, list[Literal]] = {}
        for item in node.items:
            by_kind.setdefault(kind_of(node.value, item), []).append(item)
        parts = [
            f"{self.value(node.value, kind)} {word} ({', '.join(self.value(item, kind) for item in items)})"
            for kind, items in by_kind.items()
        ]
        return f"({(' OR ' if word == 'IN' else ' AND ').join(parts)})"

    def literal(self, node: Literal) -> str:
        if isinstance(node, Number):
            return repr(node.value)
        if isinstance(node, Truth) and is_boolean(node):
            return str(int(node.value is True))
        return super().literal(node)
