"""A DDL (`id BIGINT NOT NULL, address STRUCT<city: STRING>`) as a tree of nodes: the format `columns`."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from deltamq.mq.errors import Unprocessable
from deltamq.tables.typed.node import (
    SIMPLE,
    Child,
    Growth,
    Node,
    check_columns,
    decimal_of,
    invalid_schema,
    list_of,
    map_of,
    struct,
)

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*')|(\w+)|(.))", re.DOTALL)
_TYPES: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "TINYINT": pa.int8(),
    "SHORT": pa.int16(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
}
_DECIMALS: Final = frozenset(("DECIMAL", "DEC", "NUMERIC"))
#: Types of Spark that have no column here, and what to use.
_REFUSED: Final = {
    "TIMESTAMP_NTZ": "TIMESTAMP, or BIGINT with microseconds",
    "VARCHAR": "STRING",
    "CHAR": "STRING",
    "VARIANT": "STRING with JSON",
    "INTERVAL": "BIGINT",
    "VOID": "a type",
}


def parse_ddl(text: str) -> Node:
    """Return the tree of a DDL.

    Raises
    ------
    Unprocessable
        `invalid_schema`: the text is no DDL, or names a type or a column that no topic can have.
    """
    return check_columns(_Parser(text).whole())


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [match[0].strip() for match in _TOKEN.finditer(text) if match[0].strip()]
        self._at = 0
        self._growth = Growth()

    def whole(self) -> Node:
        fields = self._fields("", 0)
        if self._at < len(self._tokens):
            raise self._unexpected("a comma or the end")
        return struct(fields, closed=True)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, word: str) -> bool:
        taken = self._peek().upper() == word
        self._at += taken
        return taken

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected(word)

    def _unexpected(self, wanted: str) -> Unprocessable:
        token = self._peek()[:100]
        return invalid_schema(f"expects {wanted} at {token!r}" if token else f"expects {wanted} at its end")

    def _fields(self, at: str, depth: int) -> list[Child]:
        fields = [self._field(at, depth)]
        while self._take(","):
            fields.append(self._field(at, depth))
        return fields

    def _field(self, at: str, depth: int) -> Child:
        name = self._next()
        if name.startswith("`") and len(name) > 1:
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"\w+", name):
            self._at -= 1
            raise self._unexpected("a field's name")
        path = f"{at}.{name}" if at else name
        self._take(":")
        node = self._type(path, self._growth.deeper(depth, path))
        required = self._take("NOT")
        if required:
            self._expect("NULL")
        if self._take("COMMENT") and not self._next().startswith("'"):
            self._at -= 1
            raise self._unexpected("a text in quotes")
        return Child(name, node, required=required, nullable=not required)

    def _type(self, at: str, depth: int) -> Node:
        word = self._next().upper()
        if word in _TYPES:
            return SIMPLE[_TYPES[word]]
        if word in _DECIMALS:
            return self._decimal(at)
        if word == "ARRAY":
            self._expect("<")
            node = list_of(self._type(f"{at}[]", self._growth.deeper(depth, at)))
        elif word == "MAP":
            self._expect("<")
            if self._next().upper() != "STRING":
                raise invalid_schema(f"{at}: the names in an object of JSON are strings; use MAP<STRING, ...>")
            self._expect(",")
            node = map_of(self._type(f"{at}[]", self._growth.deeper(depth, at)))
        elif word == "STRUCT":
            self._expect("<")
            node = struct(self._fields(at, depth), closed=True)
        else:
            remedy = f"; use {_REFUSED[word]}" if word in _REFUSED else f"; the types are {', '.join(_TYPES)}, ..."
            raise invalid_schema(f"{at}: {word[:100] or 'nothing'} is not a type of a column here{remedy}")
        self._expect(">")
        return node

    def _decimal(self, at: str) -> Node:
        precision, scale = "10", "0"
        if self._take("("):
            precision = self._next()
            scale = self._next() if self._take(",") else "0"
            self._expect(")")
        if not (precision.isdecimal() and scale.isdecimal()) or not 1 <= int(precision) <= 38:
            raise invalid_schema(f"{at}: a DECIMAL has 1 to 38 digits, DECIMAL(precision, scale)")
        if int(scale) > int(precision):
            raise invalid_schema(f"{at}: a DECIMAL cannot have more digits behind the point than it has")
        return decimal_of(int(precision), int(scale))
