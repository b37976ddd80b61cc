"""One request to the registry: what its path, query and body ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from deltamq.api.auth.caller import Caller
from deltamq.api.host.peers import Call
from deltamq.api.schemas.registry import Registry
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.schemas.registry import Compatibility, Mode, Reference, RegistryState, Schema, topic_of_subject
from deltamq.mq.schemas.setting import SchemaType, check_subject
from deltamq.mq.wire.schemas import SchemaReference

S = TypeVar("S", bound=msgspec.Struct)


class SchemaBody(msgspec.Struct):
    """A schema, as Confluent's clients write it."""

    schema: str
    schemaType: SchemaType | None = "AVRO"
    references: list[SchemaReference] | None = None
    id: int | None = None
    version: int | None = None
    metadata: Any = None
    ruleSet: Any = None

    def read(self) -> Schema:
        if self.metadata or self.ruleSet:
            raise Unprocessable(
                "metadata and ruleSet are not supported: nothing would carry the rules out",
                code="rules_not_supported",
                field="ruleSet" if self.ruleSet else "metadata",
            )
        references = tuple(Reference(one.name, one.subject, one.version) for one in self.references or ())
        return Schema(schema_type=self.schemaType or "AVRO", schema=self.schema, references=references)


class CompatibilityBody(msgspec.Struct, forbid_unknown_fields=True):
    compatibility: Compatibility


class ModeBody(msgspec.Struct, forbid_unknown_fields=True):
    mode: Mode


#: The decoder of each body, and the code of one in which a word is wrong.
_BODIES: Final[dict[type, tuple[Any, str]]] = {
    SchemaBody: (msgspec.json.Decoder(SchemaBody), "invalid_schema"),
    CompatibilityBody: (msgspec.json.Decoder(CompatibilityBody), "invalid_compatibility"),
    ModeBody: (msgspec.json.Decoder(ModeBody), "invalid_mode"),
}


class Ask(NamedTuple):
    """One request."""

    registry: Registry
    caller: Caller
    #: What the path names, and what the query says.
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    call: Call

    @property
    def subject(self) -> str:
        return check_subject(self.path["subject"])

    def flag(self, name: str) -> bool:
        """Return a yes or no of the query."""
        return self.query.get(name, "").lower() == "true"

    @property
    def only_deleted(self) -> bool:
        """Return whether only what is deleted is asked for; Confluent's Python client writes it in its own way."""
        return self.flag("deletedOnly") or self.flag("deleted_only")

    def read(self, kind: type[S]) -> S:
        """Return the body; null counts as a field left out."""
        decoder, code = _BODIES[kind]
        try:
            read: S = decoder.decode(self.body)
            return read
        except msgspec.ValidationError as error:
            raise Unprocessable(f"body: {error}", code=code, field="body") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"body: not JSON: {error}", code="invalid_json", field="body") from None

    def page(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the part of a list that `offset` and `limit` ask for."""
        try:
            offset, limit = int(self.query.get("offset", 0)), int(self.query.get("limit", -1))
        except ValueError:
            raise Unprocessable("offset and limit are whole numbers", field="offset") from None
        return items[max(offset, 0) :][: limit if limit >= 0 else None]

    def may_see(self, subject: str) -> bool:
        return self.caller.allows("topic", topic_of_subject(subject), "describe")

    async def changed(self, decide: Callable[[RegistryState], Any]) -> RegistryState:
        return await self.registry.change(lambda meta: decide(meta.schemas), self.call)
