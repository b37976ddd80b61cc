"""A typed topic's bodies as columns, and columns as bodies (SPEC TYPE-10).

bodies -> the version that wrote each -> values of that version -> columns of all versions
          (wire.py, or the newest)       (version.py)              (columns.py)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.registry import Version
from deltamq.mq.schemas.setting import SchemaSetting
from deltamq.tables.typed.columns import Names, TypedColumns, columns_of, fitted
from deltamq.tables.typed.json.rendering import rendered
from deltamq.tables.typed.misfit import Misfit, Reason
from deltamq.tables.typed.node import json_node
from deltamq.tables.typed.plain import unfit
from deltamq.tables.typed.rows import in_order, projected, rows_of, without
from deltamq.tables.typed.schema import WRITERS, Schema, schema_of
from deltamq.tables.typed.sent import taken
from deltamq.tables.typed.version import Judged, VersionDecoder
from deltamq.tables.typed.wire import header_of, id_of, indexes_of, whole_header
from deltamq.tables.typed_row import INVALID, RESCUED, TYPED, VALUE, conformed, joined

#: Formats whose trees say how JSON has their values.
_JSON: Final = ("json", "columns")
#: In place of a header, of bodies that are values as they are stored.
_RENDERED: Final = b"columns"

ById = Callable[[int], Version | None]
References = Callable[[Version], Sequence[Version]]


class Codec:
    """The codec of a typed topic: immutable; what it learns of other versions by their ids is kept."""

    def __init__(
        self,
        setting: SchemaSetting,
        versions: Sequence[Version],
        by_id: ById,
        references: References,
        *,
        retired: Sequence[int] = (),
        compiled: bool = True,
    ) -> None:
        self._compiled = compiled
        self._retired = retired
        self._setting = setting
        self._by_id = by_id
        self._references = references
        self._schemas = {version.id: schema_of(setting, version, references(version)) for version in versions}
        self._newest = versions[-1]
        columns = columns_of([(version.version, self._schemas[version.id].value) for version in versions])
        #: The columns of all versions.
        self.value_type: pa.StructType = columns.value_type
        self._names: Names = columns.names
        self._rescues = setting.on_invalid == "rescue"
        self._decoders: dict[bytes, VersionDecoder] = {}

    @property
    def is_rendered(self) -> bool:
        """Whether only the value is stored, and a body is rendered for who wants bytes."""
        return self._setting.format == "columns"

    @property
    def rejects(self) -> bool:
        """Whether a message that does not fit is refused."""
        return self._setting.on_invalid == "reject"

    @property
    def is_headless(self) -> bool:
        """Whether bodies do not say which version wrote them."""
        return self._setting.wire == "none"

    @property
    def is_read_by_its_writer(self) -> bool:
        """Whether a body can be read only with the version that wrote it, and does not say which that was."""
        return self.is_headless and self._setting.format == "avro"

    @property
    def newest(self) -> int:
        """The id of the version that writes."""
        return self._newest.id

    # Bodies to columns.

    def decode(self, bodies: pa.BinaryArray, writers: pa.Int32Array | None = None) -> TypedColumns:
        """Return the columns of bodies; a null or empty body has a null value and is no fault.

        `writers` has the id of the schema that wrote each body that does not say it; null stands for the newest, or for
        `render`, if the topic keeps only values.
        """
        return self._decode(bodies, writers, self._names)

    def _decode(self, bodies: pa.BinaryArray, writers: pa.Int32Array | None, names: Names) -> TypedColumns:
        count, judged = len(bodies), Judged()
        groups: list[tuple[Sequence[int], pa.StructArray]] = []
        # Most often one version wrote all: the first body's.
        pending: list[tuple[bytes, Sequence[int]]] = [(self._first_header(bodies), range(count))]
        if self.is_headless and writers is not None:
            pending = _by_writer(writers, _RENDERED if self.is_rendered else b"")
        is_first, is_behind = True, False
        while pending:
            header, positions = pending.pop()
            some = bodies if len(positions) == count else bodies.take(pa.array(positions, pa.int64()))
            decoder, others = self._decoder(header), list(range(len(some)))
            if decoder is not None:
                values, others = decoder.decode(some, positions, judged)
                if self._setting.unwrap:
                    values = values.flatten()[values.type.get_field_index("after")]
                groups.append((positions, fitted(values, self.value_type, names)))
            elif not is_first:
                self._reject(header, some, positions, judged)
            # A header without a decoder of its own; of the first one, the bodies that have it are asked again.
            is_behind |= header not in self._decoders and (self.is_headless or not is_first)
            if is_first and others:
                pending.extend(self._by_header(bodies, others).items())
            is_first = False
        values = in_order(groups, count, self.value_type)
        return TypedColumns(values, judged.invalid(count), judged.rescued(count), is_behind)

    def _header_of(self, body: bytes) -> bytes:
        return header_of(body, has_indexes=self._setting.format == "protobuf")

    def _first_header(self, bodies: pa.BinaryArray) -> bytes:
        if self.is_headless:
            return b""
        return next((self._header_of(body.as_py()) for body in bodies if body.as_py()), b"")

    def _by_header(self, bodies: pa.BinaryArray, rows: Sequence[int]) -> dict[bytes, list[int]]:
        """The places among `rows` of the bodies that are not empty, by their headers."""
        groups: dict[bytes, list[int]] = {}
        for row, body in zip(rows, bodies.take(pa.array(rows, pa.int64())).to_pylist(), strict=True):
            if body:
                groups.setdefault(self._header_of(body), []).append(row)
        return groups

    def _reject(self, header: bytes, bodies: pa.BinaryArray, positions: Sequence[int], judged: Judged) -> None:
        id_ = id_of(header)
        why = Reason.OTHER_SCHEMA if id_ is not None else Reason.NO_HEADER if header[0] else Reason.TRUNCATED
        # The column has numbers of 32 bits with a sign.
        schema_id = id_ if id_ is not None and id_ < 1 << 31 else None
        for position, body in zip(positions, bodies.to_pylist(), strict=True):
            judged.add(position, unfit(Misfit(why), body, rescues=self._rescues), schema_id)

    def _decoder(self, header: bytes) -> VersionDecoder | None:
        """Return the decoder of the bodies with a header; None: no schema of the topic has it.

        Where bodies have none, it is the header that they would have, or empty for the newest version.
        """
        if header == _RENDERED and header not in self._decoders:
            self._decoders[header] = self._json_decoder(self.value_type, self._newest.id, rescues=self._rescues)
        if header not in self._decoders:
            id_ = id_of(header)
            schema = None if id_ is None else self._schema(id_)
            if self.is_headless and schema is None:
                if header:
                    return self._decoder(b"")
                schema = self._schemas[self._newest.id]
            elif schema is None or (not self.is_headless and indexes_of(header) != schema.indexes):
                # Not kept: it may be registered the next moment.
                return None
            self._decoders[header] = VersionDecoder(
                self._setting.format,
                schema,
                b"" if self.is_headless else header,
                rescues=self._rescues,
                compiled=self._compiled,
            )
        return self._decoders[header]

    def _json_decoder(self, kind: pa.StructType, id_: int, *, rescues: bool) -> VersionDecoder:
        """Return the decoder of objects of JSON whose fields are columns of this type."""
        root = json_node(kind)
        return VersionDecoder("columns", Schema(id_, root, root), b"", rescues=rescues, compiled=self._compiled)

    def _schema(self, id_: int) -> Schema | None:
        """Return a schema of the topic; None: it is of another, or has fields without columns here."""
        if id_ in self._schemas:
            return self._schemas[id_]
        version = self._by_id(id_)
        if version is None or version.subject != self._setting.subject:
            return None
        try:
            schema = schema_of(self._setting, version, self._references(version))
            fitted(pa.array([], schema.value.arrow), self.value_type, self._names)
        except (Unprocessable, AssertionError):
            return None
        return schema

    # Which version wrote the bodies that do not say it.

    def writers(self, rows: pa.RecordBatch) -> pa.Int32Array:
        """Return the id of the schema that wrote each stored row: the newest by which its body is its value.

        It is null where there is no body, or no version gives the value: the row is older than the schema.
        """
        bodies, kept = rows.column("body"), self.stored(rows)
        ids = np.zeros(len(bodies), np.int32)
        if kept.invalid is not None:
            ids = pc.fill_null(pc.struct_field(kept.invalid, "schema_id"), 0).to_numpy(zero_copy_only=False).copy()
        is_there = pc.fill_null(pc.greater(pc.binary_length(bodies), 0), False).to_numpy(zero_copy_only=False)
        left = np.flatnonzero(is_there & (ids == 0))
        wanted = _texts(kept)
        # A row that is older than another name of a field lacks the column of that name.
        candidates = (*reversed(self._schemas), *reversed(self._retired))
        for id_, names in itertools.product(candidates, (self._names, {})):
            if not len(left):
                break
            ids_of_left = pa.repeat(pa.scalar(id_, pa.int32()), len(left))
            some = self._decode(bodies.take(pa.array(left)), ids_of_left, names)
            same = np.fromiter(
                (text == wanted[row] for text, row in zip(_texts(some), left.tolist(), strict=True)),
                np.bool_,
                len(left),
            )
            if some.invalid is not None:
                same &= some.invalid.is_null().to_numpy(zero_copy_only=False)
            ids[left[same]] = id_
            left = left[~same]
        return pa.array(ids, pa.int32(), mask=ids == 0)

    def stored(self, rows: pa.RecordBatch) -> TypedColumns:
        """Return the columns that rows of the topic have, as all versions have them.

        Raises
        ------
        Conflict
            `schema_conflict`: a field of theirs has another type now.
        """
        columns = {name: rows.column(name) for name in TYPED if rows.schema.get_field_index(name) >= 0}
        value = columns.get(VALUE)
        if value is None:
            value = pa.nulls(rows.num_rows, self.value_type)
        joined(value.type, self.value_type)
        return TypedColumns(conformed(value, self.value_type), columns.get(INVALID), columns.get(RESCUED))

    # Columns that were sent, and columns to bodies.

    def check(self, values: pa.StructArray) -> TypedColumns:
        """Return values that were sent as Arrow in the topic's columns; rows that do not fit are null and `invalid`.

        Raises
        ------
        Unprocessable
            `invalid_value`: a column has a type that has no exact values in the topic's column; names it.
        """
        schema, judged = self._written(), Judged()
        columns, faults = taken(values, schema.root)
        bad = np.zeros(len(values), np.bool_)
        for rows, misfit in faults:
            judged.add_fault(misfit, np.flatnonzero(rows & ~bad).tolist(), schema.id)
            bad |= rows
        if schema.judge is not None:
            for row, body in enumerate(self.encode(without(columns, bad)).to_pylist()):
                why = None if body is None else schema.judge.misfit(body)
                if why is not None:
                    judged.add_fault(why, (row,), schema.id)
                    bad[row] = True
        if bad.any():
            columns = without(columns, bad)
        return TypedColumns(fitted(columns, self.value_type, self._names), judged.invalid(len(values)))

    def encode(self, values: pa.StructArray | Sequence[Any]) -> pa.BinaryArray:
        """Return the bodies of values in the newest version: columns, or what becomes an object of JSON for each.

        A value that is null has a null body. In the formats of JSON, an object is its body, which `decode` judges.

        Raises
        ------
        Unprocessable
            `invalid_value`: a value has no exact body in the topic's format; names its place and the field.
        """
        schema = self._written()
        start = b"" if self.is_headless else whole_header(schema.id, schema.indexes)
        if isinstance(values, pa.Array):
            own = values.type == self.value_type
            columns = self._checked(projected(values, schema.root.arrow) if own else values, schema)
        else:
            texts = [None if text == b"null" else text for text in map(msgspec.json.encode, values)]
            if self._setting.format in _JSON:
                return pa.array([None if text is None else start + text for text in texts], pa.binary())
            columns = self._of_json(pa.array(texts, pa.binary()), schema)
        write = WRITERS[self._setting.format](schema.root)
        bodies = []
        for position, row in enumerate(rows_of(columns)):
            try:
                bodies.append(None if row is None else start + write(row))
            except Misfit as misfit:
                raise _no_body(misfit.field, misfit.reason, position) from None
        return pa.array(bodies, pa.binary())

    def _written(self) -> Schema:
        """The schema of bodies that are made here."""
        if self._setting.unwrap:
            raise Unprocessable("value: this topic takes Debezium's envelopes; send bodies", field="value")
        return self._schemas[self._newest.id]

    def _of_json(self, texts: pa.BinaryArray, schema: Schema) -> pa.StructArray:
        decoder, judged = self._json_decoder(schema.root.arrow, schema.id, rescues=False), Judged()
        columns, _ = decoder.decode(texts, range(len(texts)), judged)
        invalid = judged.invalid(len(texts))
        if invalid is not None:
            position = int(np.flatnonzero(invalid.is_valid())[0])
            why = invalid[position].as_py()
            raise _no_body(why["field"], why["reason"], position)
        return columns

    def _checked(self, values: pa.StructArray, schema: Schema) -> pa.StructArray:
        columns, faults = taken(values, schema.root)
        for rows, misfit in faults:
            raise _no_body(misfit.field, misfit.reason, int(np.flatnonzero(rows)[0]))
        return columns

    def typed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as they are stored: with typed columns, those that they have, or what their bodies are.

        Where the value is all that is stored, a body that it renders is left out.
        """
        if rows.schema.get_field_index(VALUE) < 0:
            rows = with_columns(rows, self.decode(rows.column("body")))
        at = rows.schema.get_field_index("body")
        if not self.is_rendered or at < 0:
            return rows
        values = rows.column(rows.schema.get_field_index(VALUE))
        bodies = pc.if_else(values.is_valid(), pa.scalar(None, pa.binary()), rows.column(at))
        return rows.set_column(at, rows.schema.field(at), bodies)

    def render(self, values: pa.StructArray) -> pa.BinaryArray:
        """Return values as JSON (SPEC TYPE-16); null for null."""
        return rendered(values)


def _by_writer(writers: pa.Int32Array, others: bytes) -> list[tuple[bytes, Sequence[int]]]:
    """The places of the bodies of each writer, by the headers that they would have; `others` is that of no writer."""
    ids = pc.fill_null(writers, 0).to_numpy()
    every: list[tuple[bytes, Sequence[int]]] = []
    for id_ in np.unique(ids).tolist():
        places = np.flatnonzero(ids == id_).tolist()
        every.append(
            (whole_header(id_, None) if id_ else others, range(len(ids)) if len(places) == len(ids) else places)
        )
    return every


def _texts(columns: TypedColumns) -> list[tuple[bytes | None, str | None]]:
    """Rows in a form that shows whether they are the same: NaN is itself."""
    rescued = [None] * len(columns.value) if columns.rescued is None else columns.rescued.to_pylist()
    return list(zip(rendered(columns.value).to_pylist(), rescued, strict=True))


def with_columns(rows: pa.RecordBatch, typed: TypedColumns) -> pa.RecordBatch:
    """Return rows with these typed columns behind their own."""
    for name, column in ((VALUE, typed.value), (INVALID, typed.invalid), (RESCUED, typed.rescued)):
        if column is not None:
            rows = rows.append_column(name, column)
    return rows


def codec_of(
    setting: SchemaSetting,
    versions: Sequence[Version],
    by_id: ById,
    references: References,
    *,
    retired: Sequence[int] = (),
    compiled: bool = True,
) -> Codec:
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
    retired
        The ids of versions that were deleted softly: they may have written messages that are there.
    compiled
        Whether the compiled decoders are used, where they are; the plain ones give the same values.

    Raises
    ------
    Unprocessable
        `invalid_schema`: a version is no schema, or its values have no columns; names its field and the remedy.
    Conflict
        `schema_conflict`: a field whose type changed can have no second column.
    """
    return Codec(setting, versions, by_id, references, retired=retired, compiled=compiled)


def _no_body(field: str, reason: str, position: int) -> Unprocessable:
    field = f"value.{field}" if field else "value"
    return Unprocessable(f"messages[{position}].{field} {reason}", field=field, extra={"index": position})
