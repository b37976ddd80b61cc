"""Schemas over REST: subjects, their versions, and whether a schema may be the next one (SPEC TYPE-20).

Confluent's own clients work with the service as well; these calls are for scripts and the command line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, TypedDict
from urllib.parse import quote

import msgspec

from deltamq.mq.client.http.calls import Calls, read_answer
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.shells.both import both
from deltamq.mq.client.shells.rows import both_rows
from deltamq.mq.errors import Unprocessable
from deltamq.mq.names import check_topic
from deltamq.mq.schemas.setting import Format, OnInvalid, Wire
from deltamq.mq.wire.quarantine import Quarantine, QuarantinedMessage, QuarantineDone, QuarantineRequest
from deltamq.mq.wire.schemas import SchemaPut, SchemaReference, SchemaVersion

SchemaType = Literal["AVRO", "JSON", "PROTOBUF", "COLUMNS"]


class TopicSchema(TypedDict, total=False):
    """What a topic's messages are written in; a part that is left out stays, or gets its default."""

    format: Format
    #: The text of the schema, or a dataclass, TypedDict or msgspec Struct, whose JSON Schema it is.
    schema: str | type
    references: Sequence[SchemaReference]
    subject: str
    message: str
    wire: Wire
    on_invalid: OnInvalid
    unwrap: Literal["", "debezium"]


def schema_put(wanted: TopicSchema | type) -> SchemaPut:
    """Return what a request says of a topic's schema; a type is one of JSON."""
    given: dict[str, Any] = {"schema": wanted} if isinstance(wanted, type) else dict(wanted)
    kind = given.get("schema")
    if kind is not None and not isinstance(kind, str):
        given = {"format": "json", **given, "schema": _json_schema(kind)}
    if "references" in given:
        given["references"] = tuple(given["references"])
    return SchemaPut(**given)


def _json_schema(kind: Any) -> str:
    """Return the JSON Schema of a type, as producers encode its instances."""
    try:
        (own,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise Unprocessable(f"schema: {error}", field="schema") from error
    name = own.get("$ref", "").rpartition("/")[2]
    whole = {**parts.pop(name, own), **({"$defs": parts} if parts else {})}
    return msgspec.json.encode(whole).decode()


class _Compatible(msgspec.Struct):
    messages: list[str] = []


def _path(*parts: str | int) -> str:
    return "/schemas/" + "/".join(quote(str(part), safe="") for part in parts)


def _body(schema: str, schema_type: str, references: Sequence[SchemaReference]) -> bytes:
    return msgspec.json.encode({"schema": schema, "schemaType": schema_type, "references": references})


class SchemaAdmin(Calls):
    """The part of `Admin` for the schema registry, and for what did not fit a topic's schema."""

    @both
    async def list_subjects(self, *, deleted: bool = False) -> list[str]:
        """Return the subjects that the caller may read, sorted; with the `deleted` ones if asked."""
        query = {"deleted": str(deleted).lower()}
        return read_answer(await self._call("GET", _path("subjects"), query=query), list[str])

    @both
    async def list_schemas(self, subject: str) -> list[int]:
        """Return the numbers of a subject's versions, ascending; raises `NotFound`."""
        return read_answer(await self._call("GET", _path("subjects", subject, "versions")), list[int])

    @both
    async def get_schema(self, subject: str, version: int | None = None) -> SchemaVersion:
        """Return a version of a subject, by default the newest; raises `NotFound`."""
        path = _path("subjects", subject, "versions", "latest" if version is None else version)
        return read_answer(await self._call("GET", path), SchemaVersion)

    @both
    async def register_schema(
        self,
        subject: str,
        schema: str,
        *,
        schema_type: SchemaType = "AVRO",
        references: Sequence[SchemaReference] = (),
    ) -> SchemaVersion:
        """Make a schema the next version of a subject; return the version that it is, also if it was one before.

        Raises
        ------
        Conflict
            It is not compatible with earlier versions; the error says why.
        Unprocessable
            The text is no schema of this type, or refers to what is not there.
        """
        body = _body(schema, schema_type, references)
        registered = read_answer(
            await self._call("POST", _path("subjects", subject, "versions"), body=body), dict[str, object]
        )
        return msgspec.convert({**registered, "subject": subject}, SchemaVersion)

    @both
    async def check_schema(
        self,
        subject: str,
        schema: str,
        *,
        schema_type: SchemaType = "AVRO",
        references: Sequence[SchemaReference] = (),
    ) -> list[str]:
        """Return why a schema may not be the next version of a subject; an empty list if it may."""
        path = _path("compatibility", "subjects", subject, "versions")
        body = _body(schema, schema_type, references)
        answer = await self._call("POST", path, query={"verbose": "true"}, body=body)
        return read_answer(answer, _Compatible).messages

    @both
    async def delete_schema(self, subject: str, version: int | None = None, *, permanent: bool = False) -> None:
        """Delete a version of a subject, by default all; with `permanent` those that are deleted already, for good.

        A deleted version is still read by its id, which messages carry. Raises `NotFound`.
        """
        path = _path("subjects", subject, *(() if version is None else ("versions", version)))
        await self._call("DELETE", path, query={"permanent": str(permanent).lower()})

    # Quarantine -------------------------------------------------------------------------------------------------

    @both
    async def quarantine_page(
        self,
        topic: str,
        *,
        limit: int = 100,
        code: str | None = None,
        partition: str | None = None,
        offset: int | None = None,
        cursor: str | None = None,
    ) -> Quarantine:
        """Return at most `limit` messages that did not fit the topic's schema; `cursor` is where to go on, or None.

        `code` is what did not fit; `partition` and `offset` name one message. A page may be empty and have a cursor.
        """
        given = {"limit": limit, "code": code, "partition": partition, "offset": offset, "cursor": cursor}
        query = {name: str(value) for name, value in given.items() if value is not None}
        return read_answer(await self._call("GET", _quarantine(topic), query=query), Quarantine)

    @both_rows
    async def quarantine(self, topic: str, *, code: str | None = None) -> AsyncGenerator[QuarantinedMessage, None]:
        """Yield the messages that did not fit the topic's schema, partition by partition, the oldest first."""
        cursor: str | None = None
        while True:
            page = await SchemaAdmin.quarantine_page.core(self, topic, limit=1_000, code=code, cursor=cursor)
            for message in page.messages:
                yield message
            cursor = page.cursor
            if cursor is None:
                return

    @both
    async def replay_quarantine(
        self, topic: str, *, offsets: Mapping[str, Sequence[int]] | None = None, code: str | None = None
    ) -> QuarantineDone:
        """Send messages in quarantine again: all, or those at `offsets` by partition, or with a `code`.

        They are decoded with the topic's newest schema; what does not fit stays, and is in the answer's `failed`. A
        repeated call stores nothing twice.
        """
        wanted = QuarantineRequest(offsets=_offsets(offsets), code=code)
        return await self._quarantine_done("POST", f"{_quarantine(topic)}/replay", wanted)

    @both
    async def delete_quarantine(
        self,
        topic: str,
        *,
        offsets: Mapping[str, Sequence[int]] | None = None,
        code: str | None = None,
        everything: bool = False,
    ) -> QuarantineDone:
        """Delete messages in quarantine: they are shown no more, and never sent again; retention removes them in time.

        Say which, or `everything`.
        """
        wanted = QuarantineRequest(offsets=_offsets(offsets), code=code, all=everything)
        return await self._quarantine_done("DELETE", _quarantine(topic), wanted)

    async def _quarantine_done(self, method: str, path: str, wanted: QuarantineRequest) -> QuarantineDone:
        """Repeat a call until it has come to the end."""
        sums = QuarantineDone(done=0)
        while True:
            done = read_answer(await self._call(method, path, body=msgspec.json.encode(wanted)), QuarantineDone)
            sums = QuarantineDone(
                done=sums.done + done.done,
                duplicates=sums.duplicates + done.duplicates,
                failed=[*sums.failed, *done.failed],
                failed_total=sums.failed_total + done.failed_total,
            )
            if done.cursor is None:
                return sums
            wanted.cursor = done.cursor


def _quarantine(topic: str) -> str:
    return path_of("topics", check_topic(topic), "quarantine")


def _offsets(offsets: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]] | None:
    return None if offsets is None else {partition: list(some) for partition, some in offsets.items()}
