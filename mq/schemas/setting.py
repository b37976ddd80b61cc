"""The setting `schema` of a typed topic: what messages are written in, and what becomes of one that does not fit."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.limits import SUBJECT_LENGTH_MAX

SchemaType: TypeAlias = Literal["AVRO", "JSON", "PROTOBUF", "COLUMNS"]
Format: TypeAlias = Literal["avro", "json", "protobuf", "columns"]
Wire: TypeAlias = Literal["confluent", "none"]
OnInvalid: TypeAlias = Literal["reject", "quarantine", "rescue"]

_TYPES: Final[dict[Format, SchemaType]] = {
    "avro": "AVRO",
    "json": "JSON",
    "protobuf": "PROTOBUF",
    "columns": "COLUMNS",
}

#: What Confluent's registry means by names that begin so: other registries inside one, and all subjects.
_RESERVED: Final = (":", "__GLOBAL", "__EMPTY")


def subject_of(topic: str) -> str:
    """Return the subject that a topic's values have unless its setting names another one: Confluent's default."""
    return f"{topic}-value"


class SchemaSetting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the messages of a typed topic are written in."""

    format: Format
    #: The subject in the registry whose live versions are the topic's schema.
    subject: str
    #: The name of the message of a Protobuf schema; empty for the first one.
    message: str = ""
    #: Whether bodies begin with Confluent's header (a zero byte, the schema's id, Protobuf's message indexes).
    wire: Wire = "none"
    on_invalid: OnInvalid = "reject"
    #: The envelope around the value that is taken off; empty for none.
    unwrap: Literal["", "debezium"] = ""

    @property
    def schema_type(self) -> SchemaType:
        """The type that versions of the subject have."""
        return _TYPES[self.format]

    def check(self) -> None:
        """Return if the parts fit each other, else raise `Unprocessable`, which names the part."""
        check_subject(self.subject)
        if self.message and self.format != "protobuf":
            raise _refused("message", "only Protobuf schemas have several messages; leave it out")
        if self.wire == "confluent" and self.format == "columns":
            raise _refused("wire", "values of the format columns have no header; use wire none")
        if self.unwrap and self.format not in ("avro", "json"):
            raise _refused("unwrap", "Debezium's envelope is Avro or JSON; use one of these formats")


def _refused(field: str, why: str) -> Unprocessable:
    return Unprocessable(f"schema.{field}: {why}", code="invalid_schema_setting", field=f"schema.{field}")


def check_subject(subject: str) -> str:
    """Return `subject` if it is a legal name of a subject, else raise `Unprocessable` (`invalid_subject`)."""
    if not subject or len(subject) > SUBJECT_LENGTH_MAX or not subject.isprintable() or subject.startswith(_RESERVED):
        raise Unprocessable(
            f"a subject is 1 to {SUBJECT_LENGTH_MAX} characters that can be printed, and begins with none of "
            f"{', '.join(_RESERVED)} (there is one context only)",
            code="invalid_subject",
            field="subject",
            extra={"limit": SUBJECT_LENGTH_MAX},
        )
    return subject
