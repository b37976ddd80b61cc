"""Schemas over REST: subjects, their versions, and whether a schema may be the next one (SPEC TYPE-20).

Confluent's own clients work with the service as well; these calls are for scripts and the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote

import msgspec

from deltamq.mq.client.http.calls import Calls, read_answer
from deltamq.mq.client.shells.both import both
from deltamq.mq.wire.schemas import SchemaReference, SchemaVersion

SchemaType = Literal["AVRO", "JSON", "PROTOBUF", "COLUMNS"]


class _Compatible(msgspec.Struct):
    messages: list[str] = []


def _path(*parts: str | int) -> str:
    return "/schemas/" + "/".join(quote(str(part), safe="") for part in parts)


def _body(schema: str, schema_type: str, references: Sequence[SchemaReference]) -> bytes:
    return msgspec.json.encode({"schema": schema, "schemaType": schema_type, "references": references})


class SchemaAdmin(Calls):
    """The part of `Admin` for the schema registry."""

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
