"""What the schema registry answers, as Confluent's REST API names it (SPEC TYPE-20)."""

from __future__ import annotations

import msgspec


class SchemaReference(msgspec.Struct, frozen=True):
    """Another schema that a schema uses: the name by which its text does, and the version that is meant."""

    name: str
    subject: str
    #: -1 for the newest one, when a schema is registered.
    version: int = -1


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True, rename={"schema_type": "schemaType"}):
    """A schema as a version of a subject."""

    subject: str
    version: int
    id: int
    #: AVRO, JSON, PROTOBUF or COLUMNS.
    schema_type: str = "AVRO"
    schema: str
    references: tuple[SchemaReference, ...] = ()
