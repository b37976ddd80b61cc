"""A version of a topic's schema as a tree of nodes, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from deltamq.mq.schemas.registry import Version
from deltamq.tables.typed.avro_schema import parse_avro
from deltamq.tables.typed.avro_write import avro_writer
from deltamq.tables.typed.ddl import parse_ddl
from deltamq.tables.typed.json_schema import parse_json_schema
from deltamq.tables.typed.json_text import json_writer
from deltamq.tables.typed.node import Node
from deltamq.tables.typed.protobuf_schema import message_indexes, parse_protobuf
from deltamq.tables.typed.protobuf_write import protobuf_writer


class Schema(NamedTuple):
    """A version of a topic's schema."""

    id: int
    root: Node
    #: Protobuf: where the message is in its file.
    indexes: tuple[int, ...] | None = None


def schema_of(version: Version, references: Sequence[Version], message: str = "") -> Schema:
    """Return a version's schema; `references` are the schemas that it refers to, each behind its own.

    `message` names the message of a Protobuf file; empty: the first one.

    Raises
    ------
    Unprocessable
        `invalid_schema`: the text is no such schema, or its values have no columns.
    """
    others = [one for one in references if (one.subject, one.version) != (version.subject, version.version)]
    text = version.schema
    if version.schema_type == "AVRO":
        return Schema(version.id, parse_avro(text, [one.schema for one in others]))
    if version.schema_type == "JSON":
        return Schema(version.id, parse_json_schema(text, _by_name(version, others)))
    if version.schema_type == "PROTOBUF":
        imports = _by_name(version, others)
        indexes = message_indexes(text, imports, message)
        return Schema(version.id, parse_protobuf(text, imports, message), tuple(indexes))
    return Schema(version.id, parse_ddl(text))


def _by_name(version: Version, others: Sequence[Version]) -> dict[str, str]:
    """The texts of other schemas by the names that texts have for them."""
    texts = {(one.subject, one.version): one.schema for one in others}
    uses = {use.name: (use.subject, use.version) for one in (*others, version) for use in one.references}
    return {name: texts[at] for name, at in uses.items() if at in texts}


def _avro_body(root: Node) -> Callable[[Any], bytes]:
    write = avro_writer(root)

    def body_of(value: Any) -> bytes:
        body = bytearray()
        write(value, body)
        return bytes(body)

    return body_of


def _json_body(root: Node) -> Callable[[Any], bytes]:
    write = json_writer(root)
    return lambda value: write(value).encode()


#: For each format, what makes the function that writes the values of a schema; it raises `Misfit`.
WRITERS: Final[dict[str, Callable[[Node], Callable[[Any], bytes]]]] = {
    "avro": _avro_body,
    "json": _json_body,
    "columns": _json_body,
    "protobuf": protobuf_writer,
}
