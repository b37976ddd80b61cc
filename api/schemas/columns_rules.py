"""Columns (a DDL): they are only added, as columns that may be null; none is changed or removed, at any level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deltamq.api.schemas.texts import DIFFERENCES_MAX, Texts
from deltamq.tables.typed.ddl import parse_ddl
from deltamq.tables.typed.node import Node


def parsed(texts: Texts) -> Any:
    """Return the tree of a DDL."""
    return parse_ddl(texts.schema)


def differences(reader: Node, writer: Node) -> list[str]:
    """Return how the columns of `reader` are more than columns added to those of `writer`."""
    return list(_columns(reader, writer, ""))[:DIFFERENCES_MAX]


def _columns(reader: Node, writer: Node, at: str) -> Iterator[str]:
    if reader.form != writer.form or (not reader.children and reader.arrow != writer.arrow):
        yield f"column {at}: type {reader.arrow} was {writer.arrow}"
        return
    ours, theirs = ({child.name: child for child in node.children} for node in (reader, writer))
    for name in dict.fromkeys((*theirs, *ours)):
        where = f"{at}.{name}".strip(".")
        if name not in ours:
            yield f"column {where} was removed"
        elif ours[name].required and (name not in theirs or not theirs[name].required):
            yield f"column {where} is NOT NULL, and {'could be null' if name in theirs else 'is new'}"
        elif name in theirs:
            yield from _columns(ours[name].node, theirs[name].node, where)
