"""Confluent's REST API of a schema registry, under `/schemas` (SPEC TYPE-20 to TYPE-26).

    /schemas/subjects/orders-value/versions   --call_of, the table of all calls-->   a function of `CALLS`

The paths behind `/schemas` are Confluent's, and a subject may have slashes (`%2F`): what the table reads from a path is
what a function is given. The document of the API leaves them out, since Confluent describes them.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, get_args
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import ClientDisconnect, Request

from deltamq.api.auth.caller import caller_of
from deltamq.api.auth.calls import call_of
from deltamq.api.host.peers import Call
from deltamq.api.schemas.ask import Ask, CompatibilityBody, ModeBody, SchemaBody
from deltamq.api.schemas.confluent import CONTENT_TYPE
from deltamq.api.schemas.registry import Registry
from deltamq.api.wire.answer import Answer, answer_of, as_deltamq_error, send_answer
from deltamq.api.wire.request import ClientDisconnected, Receive, Scope, Send, headers_of, media_type
from deltamq.mq.errors import NotFound, Unprocessable, UnsupportedMedia
from deltamq.mq.schemas.changes import (
    decide_compatibility,
    decide_delete_subject,
    decide_delete_version,
    decide_mode,
    live_versions,
    version_not_found,
)
from deltamq.mq.schemas.registry import ALL_SUBJECTS, Reference, RegistryState, Schema, Version
from deltamq.mq.schemas.setting import SchemaType

_VERSION_MAX: Final = 2**31 - 1
_MEDIA: Final = ("", "application/json", "application/octet-stream")
_VENDOR: Final = "application/vnd.schemaregistry"


# Subjects and versions.


async def _subjects(ask: Ask) -> Any:
    state = await ask.registry.newest()
    prefix, deleted, only = ask.query.get("subjectPrefix", ""), ask.flag("deleted"), ask.only_deleted

    def is_listed(subject: str) -> bool:
        is_live = bool(state.versions(subject))
        return subject.startswith(prefix) and (not is_live if only else is_live or deleted) and ask.may_see(subject)

    return ask.page([subject for subject in sorted(state.subjects) if is_listed(subject)])


async def _versions(ask: Ask) -> Any:
    subject, only = ask.subject, ask.only_deleted
    deleted = only or ask.flag("deleted")
    every = await ask.registry.look(lambda state: state.versions(subject, deleted=deleted))
    if not every:
        live_versions(ask.registry.state, subject)
    return ask.page([one.version for one in every or () if one.deleted or not only])


async def _version(ask: Ask) -> Any:
    return await _shown(ask, await _asked_version(ask))


async def _version_schema(ask: Ask) -> Any:
    return msgspec.Raw((await _text(ask, await _asked_version(ask))).encode())


async def _referenced_by(ask: Ask) -> Any:
    version = await _asked_version(ask)
    users = ask.registry.state.referring(version.subject, version.version)
    return ask.page(sorted({one.id for one in users if not one.deleted or ask.flag("deleted")}))


async def _asked_version(ask: Ask) -> Version:
    subject, number = ask.subject, _number(ask.path["version"])

    def look(state: RegistryState) -> Version | None:
        live = state.versions(subject, deleted=ask.flag("deleted"))
        wanted = [one for one in live if number in (-1, one.version)]
        return wanted[-1] if wanted else None

    version = await ask.registry.look(look)
    if version is None:
        live_versions(ask.registry.state, subject)
        raise version_not_found(subject, number)
    return version


def _number(text: str) -> int:
    number = -1 if text == "latest" else int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else 0
    if number != -1 and not 0 < number <= _VERSION_MAX:
        raise Unprocessable(
            f"{text[:100]!r} is no version: give a whole number from 1 to {_VERSION_MAX}, or latest",
            code="invalid_version",
            field="version",
        )
    return number


async def _register(ask: Ask) -> Any:
    body = ask.read(SchemaBody)
    schema, normalize = body.read(), ask.flag("normalize")
    # Clients write -1 for what they leave out.
    id_, number = (None if given in (None, -1, 0) else given for given in (body.id, body.version))
    version = await ask.registry.register(
        ask.subject, schema, id_=id_, number=number, call=ask.call, normalize=normalize
    )
    return {"id": version.id, "version": version.version, **_schema(version)}


async def _lookup(ask: Ask) -> Any:
    schema, subject, deleted = _asked_schema(ask), ask.subject, ask.flag("deleted")
    version = await ask.registry.look(lambda state: state.find(subject, _latest_known(state, schema), deleted=deleted))
    if version is None:
        if not ask.registry.state.versions(subject, deleted=deleted):
            live_versions(ask.registry.state, subject)
        raise _schema_not_found(f"this schema is not registered in subject {subject}")
    return await _shown(ask, version)


def _asked_schema(ask: Ask) -> Schema:
    return ask.registry.stored(ask.subject, ask.read(SchemaBody).read(), normalize=ask.flag("normalize"))


def _latest_known(state: RegistryState, schema: Schema) -> Schema:
    """Return the schema with references to the newest versions as numbers, as it would be stored."""
    references = []
    for used in schema.references:
        live = state.versions(used.subject)
        references.append(Reference(used.name, used.subject, live[-1].version) if used.version == -1 and live else used)
    return Schema(schema_type=schema.schema_type, schema=schema.schema, references=tuple(references))


async def _delete_subject(ask: Ask) -> Any:
    subject, permanent = ask.subject, ask.flag("permanent")
    gone: list[int] = []

    def decide(state: RegistryState) -> Any:
        events = decide_delete_subject(state, subject, permanent=permanent)
        gone[:] = events[0].versions  # type: ignore[union-attr] # the deletion comes first
        return events

    await ask.changed(decide)
    return gone


async def _delete_version(ask: Ask) -> Any:
    subject, permanent, number = ask.subject, ask.flag("permanent"), _number(ask.path["version"])
    gone: list[int] = []

    def decide(state: RegistryState) -> Any:
        wanted = live_versions(state, subject)[-1].version if number == -1 else number
        gone[:] = [wanted]
        return decide_delete_version(state, subject, wanted, permanent=permanent)

    await ask.changed(decide)
    return gone[0]


# Schemas by id.


async def _schemas(ask: Ask) -> Any:
    state, prefix = await ask.registry.newest(), ask.query.get("subjectPrefix", "")
    listed: list[Any] = []
    for subject in sorted(state.subjects):
        if subject.startswith(prefix) and ask.may_see(subject):
            versions = state.versions(subject, deleted=ask.flag("deleted"))
            listed += versions[-1:] if ask.flag("latestOnly") else versions
    return [await _shown(ask, one) for one in ask.page(listed)]


async def _by_id(ask: Ask) -> Any:
    version = (await _asked_places(ask))[0]
    largest = {"maxId": ask.registry.state.last_id} if ask.flag("fetchMaxId") else {}
    place = {"subject": version.subject, "version": version.version} if "subject" in ask.query else {}
    return {**_schema(version), "schema": await _text(ask, version), **place, **largest}


async def _schema_by_id(ask: Ask) -> Any:
    return msgspec.Raw((await _text(ask, (await _asked_places(ask))[0])).encode())


async def _subjects_of_id(ask: Ask) -> Any:
    places = await _asked_places(ask)
    return ask.page(sorted({one.subject for one in places if not one.deleted or ask.flag("deleted")}))


async def _versions_of_id(ask: Ask) -> Any:
    listed = [one for one in await _asked_places(ask) if not one.deleted or ask.flag("deleted")]
    return ask.page([{"subject": one.subject, "version": one.version} for one in listed])


async def _asked_places(ask: Ask) -> Sequence[Version]:
    """Return all versions with the schema of the id that the caller may see, deleted ones too: messages carry ids."""
    text = ask.path["id"]
    id_ = int(text) if text.isdecimal() and len(text) < 20 else 0
    places = await ask.registry.look(lambda state: state.places(id_))
    seen = [one for one in places or () if ask.may_see(one.subject)]
    if not seen:
        raise _schema_not_found(f"there is no schema with the id {text[:100]}")
    wanted = ask.query.get("subject")
    return [one for one in seen if one.subject == wanted] or seen


def _schema_not_found(why: str) -> NotFound:
    return NotFound(why, code="schema_not_found", field="schema")


def _schema(version: Version) -> dict[str, Any]:
    shown: dict[str, Any] = {"schema": version.schema}
    if version.schema_type != "AVRO":
        shown["schemaType"] = version.schema_type
    if version.references:
        shown["references"] = [{"name": r.name, "subject": r.subject, "version": r.version} for r in version.references]
    return shown


async def _shown(ask: Ask, version: Version) -> dict[str, Any]:
    place = {"subject": version.subject, "version": version.version, "id": version.id}
    deleted = {"deleted": True} if version.deleted else {}
    return {**place, **_schema(version), "schema": await _text(ask, version), **deleted}


async def _text(ask: Ask, version: Version) -> str:
    """Return a schema's text in the format that is asked for: Confluent's Python client reads Protobuf `serialized`."""
    wanted = ask.query.get("format", "")
    if wanted == "serialized" and version.schema_type == "PROTOBUF":
        parsed = await ask.registry.parsed(version)
        return base64.b64encode(parsed.serialized_pb).decode()
    if wanted not in ("", "default"):
        raise Unprocessable("format is serialized, for Protobuf, or left out", field="format")
    return version.schema


# Compatibility and modes.


async def _compatible(ask: Ask) -> Any:
    schema, subject = _asked_schema(ask), ask.subject
    against = (await _asked_version(ask)).version if "version" in ask.path else None
    try:
        reasons = await ask.registry.reasons_against(subject, schema, against)
    except Unprocessable as error:
        if not ask.flag("verbose"):
            raise
        reasons = [error.detail]
    answer: dict[str, Any] = {"is_compatible": not reasons}
    return {**answer, "messages": reasons} if ask.flag("verbose") else answer


async def _config(ask: Ask) -> Any:
    return {"compatibilityLevel": await _rule(ask, "compatibility", RegistryState.compatibility)}


async def _mode(ask: Ask) -> Any:
    return {"mode": await _rule(ask, "mode", RegistryState.mode)}


async def _rule(ask: Ask, name: str, shown: Callable[[RegistryState, str], str]) -> str:
    subject, state = _subject_or_all(ask), await ask.registry.newest()
    is_own = getattr(state.rules.get(subject), name, UNSET) is not UNSET
    if not is_own and subject != ALL_SUBJECTS and not ask.flag("defaultToGlobal"):
        raise NotFound(f"subject {subject} has no {name} of its own", code=f"{name}_not_set")
    return shown(state, subject)


async def _put_config(ask: Ask) -> Any:
    subject, level = _subject_or_all(ask), ask.read(CompatibilityBody).compatibility
    await ask.changed(lambda state: decide_compatibility(state, subject, level))
    return {"compatibility": level}


async def _delete_config(ask: Ask) -> Any:
    return {"compatibilityLevel": await _deleted(ask, RegistryState.compatibility, decide_compatibility)}


async def _put_mode(ask: Ask) -> Any:
    subject, mode, force = _subject_or_all(ask), ask.read(ModeBody).mode, ask.flag("force")
    await ask.changed(lambda state: decide_mode(state, subject, mode, force=force))
    return {"mode": mode}


async def _delete_mode(ask: Ask) -> Any:
    def decide(state: RegistryState, subject: str, mode: UnsetType) -> Any:
        return decide_mode(state, subject, mode, force=True)

    return {"mode": await _deleted(ask, RegistryState.mode, decide)}


async def _deleted(
    ask: Ask, shown: Callable[[RegistryState, str], str], decide: Callable[[RegistryState, str, UnsetType], Any]
) -> str:
    """Remove a rule, and return what it was."""
    subject, before = _subject_or_all(ask), [""]

    def deciding(state: RegistryState) -> Any:
        before[0] = shown(state, subject)
        return decide(state, subject, UNSET)

    await ask.changed(deciding)
    return before[0]


def _subject_or_all(ask: Ask) -> str:
    return ask.subject if "subject" in ask.path else ALL_SUBJECTS


# What is always the same.


async def _root(ask: Ask) -> Any:
    return {}


async def _contexts(ask: Ask) -> Any:
    return ask.page(["."])


async def _associations(ask: Ask) -> Any:
    """Return the subject of a typed topic's values; serializers ask for it before they take that of its name."""
    topic, subject = ask.path["topic"], ask.registry.subject_of(ask.path["topic"])
    if subject is None or ask.query.get("associationType", "value") != "value":
        return []
    place = {"resourceName": topic, "resourceNamespace": ask.path["namespace"], "resourceType": "topic"}
    return [{"subject": subject, **place, "associationType": "value", "frozen": False}]


async def _types(ask: Ask) -> Any:
    return list(get_args(SchemaType))


_ONE: Final = "/schemas/subjects/{subject}/versions/{version}"
_ID: Final = "/schemas/schemas/ids/{id}"
#: The function of each call.
CALLS: Final[Mapping[str, Callable[[Ask], Awaitable[Any]]]] = {
    "GET /schemas": _root,
    "GET /schemas/contexts": _contexts,
    "GET /schemas/associations/resources/{namespace}/{topic}": _associations,
    "GET /schemas/subjects": _subjects,
    "POST /schemas/subjects/{subject}": _lookup,
    "DELETE /schemas/subjects/{subject}": _delete_subject,
    "GET /schemas/subjects/{subject}/versions": _versions,
    "POST /schemas/subjects/{subject}/versions": _register,
    f"GET {_ONE}": _version,
    f"DELETE {_ONE}": _delete_version,
    f"GET {_ONE}/schema": _version_schema,
    f"GET {_ONE}/referencedby": _referenced_by,
    "GET /schemas/schemas": _schemas,
    "GET /schemas/schemas/types": _types,
    f"GET {_ID}": _by_id,
    f"GET {_ID}/schema": _schema_by_id,
    f"GET {_ID}/subjects": _subjects_of_id,
    f"GET {_ID}/versions": _versions_of_id,
    "POST /schemas/compatibility/subjects/{subject}/versions": _compatible,
    "POST /schemas/compatibility/subjects/{subject}/versions/{version}": _compatible,
    "GET /schemas/config": _config,
    "PUT /schemas/config": _put_config,
    "DELETE /schemas/config": _delete_config,
    "GET /schemas/config/{subject}": _config,
    "PUT /schemas/config/{subject}": _put_config,
    "DELETE /schemas/config/{subject}": _delete_config,
    "GET /schemas/mode": _mode,
    "PUT /schemas/mode": _put_mode,
    "GET /schemas/mode/{subject}": _mode,
    "PUT /schemas/mode/{subject}": _put_mode,
    "DELETE /schemas/mode/{subject}": _delete_mode,
}


class SchemasEndpoint:
    """The ASGI application of the registry's calls."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except (ClientDisconnect, ClientDisconnected):
            raise
        except Exception as error:
            answer = answer_of(as_deltamq_error(error))
        await send_answer(scope, send, answer)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        found = call_of(scope["method"], scope["raw_path"])
        if found is None:
            raise NotFound("the registry has no such call", code="path_not_found")
        body = await Request(scope, receive).body()
        if body:
            _check_media(media_type(headers_of(scope)) or "")
        query = dict(_pairs(scope["query_string"]))
        ask = Ask(self._registry, caller_of(scope), found.values, query, body, Call.of(scope))
        document = msgspec.json.encode(await CALLS[found.name](ask))
        return Answer(200, [(b"content-type", CONTENT_TYPE), (b"content-length", b"%d" % len(document))], document)


def _pairs(query: bytes) -> Iterable[tuple[str, str]]:
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def _check_media(kind: str) -> None:
    if kind not in _MEDIA and not kind.startswith(_VENDOR):
        raise UnsupportedMedia(f"content-type {kind} must be {CONTENT_TYPE.decode()} or JSON", field="content-type")
