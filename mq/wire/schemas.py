"""What a request says of a schema, and what the registry answers, as Confluent's REST API names it (SPEC TYPE-20)."""

from __future__ import annotations

from typing import Literal

import msgspec

from deltamq.mq.schemas.setting import Format, OnInvalid, Wire


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


class SchemaPut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the messages of a topic are to be written in; a part that is left out stays, or gets its default."""

    #: Set when the topic gets a schema, and never changed.
    format: Format | None = None
    #: Its subject in the registry, `TOPIC-value` if it is left out; never changed.
    subject: str | None = None
    #: The text of a new version of the subject: Avro's or JSON Schema's JSON, Protobuf's language, or a DDL.
    schema: str | None = None
    #: What the text refers to.
    references: tuple[SchemaReference, ...] = ()
    #: The message of a Protobuf schema; by default the first one.
    message: str | None = None
    #: Whether bodies begin with Confluent's header.
    wire: Wire | None = None
    #: What becomes of a message whose body does not fit: see SPEC TYPE-3.
    on_invalid: OnInvalid | None = None
    #: The envelope that is taken off.
    unwrap: Literal["", "debezium"] | None = None
