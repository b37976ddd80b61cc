"""A version of a topic's schema as a tree of nodes, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from deltamq.mq.schemas.registry import Version
from deltamq.mq.schemas.setting import SchemaSetting
from deltamq.tables.typed.avro.schema import parse_avro
from deltamq.tables.typed.avro.write import avro_writer
from deltamq.tables.typed.ddl import parse_ddl
from deltamq.tables.typed.json.schema import parse_json_schema
from deltamq.tables.typed.json.text import json_writer
from deltamq.tables.typed.json.whole import WholeJudge
from deltamq.tables.typed.node import Node, invalid_schema
from deltamq.tables.typed.protobuf.schema import message_indexes, parse_protobuf
from deltamq.tables.typed.protobuf.write import protobuf_writer

#: The field of Debezium's envelope that has the row; null after a deletion.
_AFTER: Final = "after"


class Schema(NamedTuple):
    """A version of a topic's schema."""

    id: int
    root: Node
    #: What has the columns: the root, or the field `after` of an envelope.
    value: Node
    #: Protobuf: where the message is in its file.
    indexes: tuple[int, ...] | None = None
    #: JSON Schema: judges bodies by what columns do not show; None if there is nothing of that.
    judge: WholeJudge | None = None


def schema_of(setting: SchemaSetting, version: Version, references: Sequence[Version]) -> Schema:
    """Return a version's schema; `references` are the schemas that it refers to, each behind its own.

    Raises
    ------
    Unprocessable
        `invalid_schema`: the text is no such schema, or its values have no columns.
    """
    root, indexes, judge = _root(setting, version, references)
    if not setting.unwrap:
        return Schema(version.id, root, root, indexes, judge)
    inner = next((child.node for child in root.children if child.name == _AFTER), root)
    inner = inner.children[0].node if inner.form == "nullable" else inner
    if inner.form != "struct" or inner is root:
        raise invalid_schema(
            f"has no field {_AFTER!r} with a record, which Debezium's envelope has; leave out `unwrap`"
        )
    return Schema(version.id, root, inner, indexes, judge)


def _root(
    setting: SchemaSetting, version: Version, references: Sequence[Version]
) -> tuple[Node, tuple[int, ...] | None, WholeJudge | None]:
    others = [one for one in references if (one.subject, one.version) != (version.subject, version.version)]
    text = version.schema
    if version.schema_type == "AVRO":
        return parse_avro(text, [one.schema for one in others]), None, None
    if version.schema_type == "JSON":
        root, judge = parse_json_schema(text, _by_name(version, others))
        return root, None, judge
    if version.schema_type == "PROTOBUF":
        imports = _by_name(version, others)
        return parse_protobuf(text, imports, setting.message), message_indexes(text, imports, setting.message), None
    return parse_ddl(text), None, None


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
