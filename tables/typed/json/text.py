"""Values of columns as JSON, always in the same form (SPEC TYPE-16).

a null field             left out, so a body stays the same when columns are added
a whole number           all its digits
a double, a float        the fewest digits that give it again; "NaN", "Infinity", "-Infinity"
a decimal                a string with all digits of its scale
a timestamp, a date      "2026-11-29T12:00:00.000000Z", "2026-11-29"
bytes                    base64
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from deltamq.tables.typed.misfit import Misfit, Reason, place
from deltamq.tables.typed.node import Node, json_node

#: Returns the JSON of a value that is not null.
Write = Callable[[Any], str]

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
json_string: Final[Write] = json.JSONEncoder(ensure_ascii=False).encode


def json_writer(node: Node) -> Write:
    """Return the function that writes the values of a node; it raises `Misfit` where JSON has none that is exact."""
    if node.form == "struct":
        return _struct(node)
    if node.form in ("list", "map"):
        return _list(node) if node.form == "list" else _map(node)
    if node.form == "real":
        return _double if node.arrow.bit_width == 64 else _float
    return _WRITERS[node.form]


def _struct(node: Node) -> Write:
    fields = [(child, json_string(child.name), json_writer(child.node)) for child in node.children]

    def write(value: dict[str, Any]) -> str:
        parts = []
        for child, name, inner in fields:
            item = value[child.name]
            try:
                if item is not None:
                    parts.append(f"{name}:{inner(item)}")
                elif child.required:
                    if not child.nullable:
                        raise Misfit(Reason.MISSING)
                    parts.append(f"{name}:null")
            except Misfit as misfit:
                misfit.within(child.name)
                raise
        return "{" + ",".join(parts) + "}"

    return write


def _element(write: Write, nullable: bool, item: Any, part: str) -> str:
    if item is None and nullable:
        return "null"
    try:
        if item is None:
            raise Misfit(Reason.IS_NULL)
        return write(item)
    except Misfit as misfit:
        misfit.within(part)
        raise


def _list(node: Node) -> Write:
    [child] = node.children
    inner = json_writer(child.node)
    return lambda value: (
        "[" + ",".join(_element(inner, child.nullable, item, place(n)) for n, item in enumerate(value)) + "]"
    )


def _map(node: Node) -> Write:
    [child] = node.children
    inner = json_writer(child.node)

    def write(value: list[tuple[str, Any]]) -> str:
        pairs = [f"{json_string(name)}:{_element(inner, child.nullable, item, place(name))}" for name, item in value]
        return "{" + ",".join(pairs) + "}"

    return write


def _double(value: float) -> str:
    return repr(value) if math.isfinite(value) else _infinite(value)


def _float(value: float) -> str:
    return str(np.float32(value)) if math.isfinite(value) else _infinite(value)


def _infinite(value: float) -> str:
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _timestamp(value: int) -> str:
    return f'"{(_EPOCH + timedelta(microseconds=value)).isoformat(timespec="microseconds")}Z"'


_WRITERS: Final[dict[str, Write]] = {
    "boolean": lambda value: "true" if value else "false",
    "whole": str,
    "decimal": lambda value: f'"{value:f}"',
    "string": json_string,
    "base64": lambda value: f'"{base64.b64encode(value).decode()}"',
    "date": lambda value: f'"{date.fromordinal(value + _EPOCH_DAY).isoformat()}"',
    "timestamp": _timestamp,
    "json": lambda value: str(value),
}


@functools.lru_cache(maxsize=256)
def writer_of(kind: pa.DataType) -> Write:
    """Return the function that writes the values of a column."""
    return json_writer(json_node(kind))
