"""A typed topic's bodies as columns, and columns as bodies (SPEC TYPE-10).

bodies --> the version that wrote each --> values of that version --> columns of all versions
            (header, or the newest)          (plain.py, native.py)      (columns.py)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.registry import Version
from deltamq.mq.schemas.setting import SchemaSetting
from deltamq.tables.typed.avro_schema import parse_avro
from deltamq.tables.typed.avro_write import avro_writer
from deltamq.tables.typed.columns import INVALID, Names, TypedColumns, columns_of, fitted
from deltamq.tables.typed.ddl import parse_ddl
from deltamq.tables.typed.json_schema import parse_json_schema
from deltamq.tables.typed.json_text import json_writer
from deltamq.tables.typed.json_types import json_node
from deltamq.tables.typed.json_value import Budget, converter, parsed
from deltamq.tables.typed.misfit import Misfit
from deltamq.tables.typed.node import Node, invalid_schema
from deltamq.tables.typed.plain import READERS, Read, Row, row_of, unfit
from deltamq.tables.typed.rows import in_order, projected, rows_of

ById = Callable[[int], Version | None]
References = Callable[[Version], Sequence[Version]]

#: Confluent's header: a zero byte and the schema's id in four bytes.
_HEADER_BYTES: Final = 5
_NO_SCHEMA: Final = "has no header of Confluent's wire format (a zero byte, then four bytes with a schema's id)"


def root_of(version: Version, references: Sequence[Version]) -> Node:
    """Return the tree of a version's schema; `references` are the schemas that it refers to, each behind its own.

    Raises
    ------
    Unprocessable
        `invalid_schema`: the text is no such schema, or its values have no columns.
    """
    others = [one for one in references if (one.subject, one.version) != (version.subject, version.version)]
    if version.schema_type == "AVRO":
        return parse_avro(version.schema, [one.schema for one in others])
    if version.schema_type == "JSON":
        texts = {(one.subject, one.version): one.schema for one in others}
        named = {use.name: (use.subject, use.version) for one in (*others, version) for use in one.references}
        return parse_json_schema(version.schema, {name: texts[at] for name, at in named.items() if at in texts})
    if version.schema_type == "COLUMNS":
        return parse_ddl(version.schema)
    raise invalid_schema("Protobuf is not supported yet; use avro, json or columns")


class _Writer(NamedTuple):
    """How the bodies of one version are read."""

    root: Node
    read: Read
    schema_id: int


class Codec:
    """The codec of a typed topic: immutable; what it learns of other versions by their ids is kept."""

    def __init__(
        self, setting: SchemaSetting, versions: Sequence[Version], by_id: ById, references: References
    ) -> None:
        self._setting = setting
        self._by_id = by_id
        self._references = references
        self._roots = {version.id: root_of(version, references(version)) for version in versions}
        self._newest = versions[-1]
        columns = columns_of([(version.version, self._roots[version.id]) for version in versions])
        #: The columns of all versions.
        self.value_type: pa.StructType = columns.value_type
        self._names: Names = columns.names
        self._writers: dict[int, _Writer | None] = {}

    # Bodies to columns.

    def decode(self, bodies: pa.BinaryArray) -> TypedColumns:
        """Return the columns of bodies; a null or empty body has a null value and is no fault."""
        rescues = self._setting.on_invalid == "rescue"
        groups: dict[int, tuple[Node, list[int], list[Row]]] = {}
        faults: list[tuple[int, Row]] = []
        for position, body in enumerate(bodies.to_pylist()):
            if not body:
                continue
            try:
                writer, start = self._writer_of(body)
            except Misfit as misfit:
                faults.append((position, unfit(misfit, body, rescues=rescues)))
                continue
            row = row_of(writer.read, body, start, rescues=rescues)
            if row.misfit is not None:
                row.misfit.schema_id = writer.schema_id
            if row.misfit is not None or row.rescued is not None:
                faults.append((position, row))
            if row.value is not None:
                _, positions, rows = groups.setdefault(writer.schema_id, (writer.root, [], []))
                positions.append(position)
                rows.append(row)
        columns = [
            (positions, self._fitted(pa.array([row.value for row in rows], root.arrow)))
            for root, positions, rows in groups.values()
        ]
        value = in_order(columns, len(bodies), self.value_type)
        return TypedColumns(value, _invalid(faults, len(bodies)), _rescued(faults, len(bodies)))

    def _fitted(self, values: pa.StructArray) -> pa.StructArray:
        return fitted(values, self.value_type, self._names)

    def _writer_of(self, body: bytes) -> tuple[_Writer, int]:
        """Return how a body is read, and where it begins; raise `Misfit`: `unknown_schema` or `truncated`."""
        if self._setting.wire == "none":
            writer = self._known(self._newest.id)
            assert writer is not None, "the newest version is one of the topic's"
            return writer, 0
        if body[0] != 0:
            raise Misfit("unknown_schema", _NO_SCHEMA)
        if len(body) < _HEADER_BYTES:
            raise Misfit("truncated", "ends within its header")
        id_ = int.from_bytes(body[1:_HEADER_BYTES], "big")
        writer = self._known(id_)
        if writer is None:
            misfit = Misfit("unknown_schema", f"the schema with the id {id_} is none of {self._setting.subject[:100]}")
            misfit.schema_id = id_ if id_ < 1 << 31 else None
            raise misfit
        return writer, _HEADER_BYTES

    def _known(self, id_: int) -> _Writer | None:
        if id_ not in self._writers:
            root = self._root(id_)
            if root is None:
                # Not kept: it may be registered the next moment.
                return None
            self._writers[id_] = _Writer(root, READERS[self._setting.format](root), id_)
        return self._writers[id_]

    def _root(self, id_: int) -> Node | None:
        """Return the tree of a schema of the topic; None: it is of another, or has fields without columns here."""
        if id_ in self._roots:
            return self._roots[id_]
        version = self._by_id(id_)
        if version is None or version.subject != self._setting.subject:
            return None
        try:
            root = root_of(version, self._references(version))
            fitted(pa.array([], root.arrow), self.value_type, self._names)
        except (Unprocessable, AssertionError):
            return None
        return root

    # Columns to bodies.

    def encode(self, values: pa.StructArray | Sequence[Any]) -> pa.BinaryArray:
        """Return the bodies of values in the newest version: columns, or what becomes an object of JSON for each.

        A value that is null has a null body.

        Raises
        ------
        Unprocessable
            `invalid_value`: a value has no exact body in the topic's format; names its place and the field.
        """
        root = self._roots[self._newest.id]
        kind = root.arrow
        columns = projected(values, kind) if isinstance(values, pa.Array) else _columns_of_objects(values, kind)
        header = b"\0" + self._newest.id.to_bytes(4, "big") if self._setting.wire == "confluent" else b""
        write = _body_writer(self._setting.format, root)
        bodies = []
        for position, row in enumerate(rows_of(columns)):
            try:
                bodies.append(None if row is None else header + write(row))
            except Misfit as misfit:
                raise _no_body(misfit, position) from None
        return pa.array(bodies, pa.binary())

    def render(self, values: pa.StructArray) -> pa.BinaryArray:
        """Return values as JSON (SPEC TYPE-16); null for null."""
        write = self._render
        return pa.array([None if row is None else write(row).encode() for row in rows_of(values)], pa.binary())

    @functools.cached_property
    def _render(self) -> Callable[[Any], str]:
        return json_writer(json_node(self.value_type))


def codec_of(setting: SchemaSetting, versions: Sequence[Version], by_id: ById, references: References) -> Codec:
    """Return the codec of a topic.

    Parameters
    ----------
    setting
        The topic's `schema`.
    versions
        The live versions of its subject, ascending; at least one. The last one writes.
    by_id
        Returns the version with an id, deleted ones too, preferably that of the topic's subject.
    references
        Returns the schemas that a version refers to, each behind those that it refers to itself.

    Raises
    ------
    Unprocessable
        `invalid_schema`: a version is no schema, or its values have no columns; names its field and the remedy.
    Conflict
        `schema_conflict`: a field whose type changed can have no second column.
    """
    return Codec(setting, versions, by_id, references)


def _body_writer(form: str, root: Node) -> Callable[[Any], bytes]:
    if form == "avro":
        write = avro_writer(root)

        def body_of(value: Any) -> bytes:
            body = bytearray()
            write(value, body)
            return bytes(body)

        return body_of
    text = json_writer(root)
    return lambda value: text(value).encode()


def _columns_of_objects(values: Sequence[Any], kind: pa.StructType) -> pa.StructArray:
    convert = converter(json_node(kind))
    rows = []
    for position, value in enumerate(values):
        try:
            body = msgspec.json.encode(value)
            rows.append(None if body == b"null" else convert(parsed(body), Budget(len(body))))
        except Misfit as misfit:
            raise _no_body(misfit, position) from None
    return pa.array(rows, kind)


def _no_body(misfit: Misfit, position: int) -> Unprocessable:
    field = f"value.{misfit.field}" if misfit.field else "value"
    return Unprocessable(f"messages[{position}].{field} {misfit.reason}", field=field, extra={"index": position})


def _invalid(faults: Sequence[tuple[int, Row]], count: int) -> pa.StructArray | None:
    rows: list[Any] = [None] * count
    for position, row in faults:
        misfit = row.misfit
        if misfit is not None:
            rows[position] = (misfit.code, misfit.field, misfit.reason, misfit.schema_id)
    return pa.array(rows, INVALID) if any(row is not None for row in rows) else None


def _rescued(faults: Sequence[tuple[int, Row]], count: int) -> pa.StringArray | None:
    texts: list[str | None] = [None] * count
    for position, row in faults:
        texts[position] = row.rescued
    return pa.array(texts, pa.string()) if any(text is not None for text in texts) else None
