"""The whole of `/openapi.json`: FastAPI's description of its own calls, and ours of the calls that it does not serve.

Schemas come from the structs that decode requests and encode answers.
"""

from __future__ import annotations

from typing import Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from deltamq.api.auth.calls import CALLS, OPEN, access_of, is_audited
from deltamq.api.openapi.examples import add_examples
from deltamq.api.openapi.messages import CLOUD_EVENT, message_paths
from deltamq.api.openapi.pop import POP_TYPES, pop_paths, tighten_pop
from deltamq.api.openapi.portable import NULL, make_portable
from deltamq.api.wire.openapi_parts import BODIES, NULLABLE, PROBLEM, REF, STATUSES, Json, problem
from deltamq.mq.limits import DELAY_MS_MAX
from deltamq.mq.wire.produce import Message, ProduceAnswer, ProduceRequest
from deltamq.mq.wire.stored import FetchAnswer

_RESPONSE: Final = "#/components/responses/"
_SCHEME: Final = "key"
_KEYS: Final[Json] = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "mqk_<id>_<secret>",
    "description": "A principal's key. `x-deltamq-access` of a call says what the principal must be granted. Without"
    " the setting `service.auth` no key is needed.",
}
#: Statuses of the check in front of all calls that are not open.
_REFUSED: Final = (401, 403, 429)


def describe(app: FastAPI) -> Json:
    """Return the whole document; it is made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, ours = msgspec.json.schema_components(
            [ProduceRequest, Message, ProduceAnswer, FetchAnswer, *POP_TYPES, *BODIES],
            ref_template=f"{REF}{{name}}",
        )
        schemas.update(ours)
        schemas |= {"Problem": PROBLEM, "CloudEvent": CLOUD_EVENT}
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        _tighten(schemas)
        _allow_nulls(schemas)
        add_examples(schemas)
        document["paths"] |= message_paths() | pop_paths()
        document["components"]["responses"] = _problems()
        document["components"]["securitySchemes"] = {_SCHEME: _KEYS}
        for template, path in document["paths"].items():
            for method, call in path.items():
                name = _name(method, template)
                needed = access_of(name)
                call["responses"] = _with_problems(call["responses"], *_REFUSED[: 0 if needed == OPEN else None])
                call["x-deltamq-access"] = needed
                call["x-deltamq-audited"] = is_audited(name)
                if app.state.is_guarded:
                    call["security"] = [] if needed == OPEN else [{_SCHEME: []}]
        make_portable(document)
        app.openapi_schema = document
    return app.openapi_schema


def _name(method: str, template: str) -> str:
    """Return the name of a call in the table of the check."""
    name = f"{method.upper()} {template}"
    return name if name in CALLS else f"{name.removesuffix('}')}:path}}"


def _with_problems(responses: Json, *more: int) -> Json:
    """Return the responses without FastAPI's own 422, which we never send, and with those that any call may give."""
    kept = {s: r for s, r in responses.items() if "HTTPValidationError" not in str(r)}
    for status in (405, 408, 431, 503, *more):
        kept.setdefault(str(status), problem(status))
    shared = _problems()
    named = {
        status: {"$ref": f"{_RESPONSE}Problem{status}"}
        for status in kept
        if shared.get(f"Problem{status}") == kept[status]
    }
    return dict(sorted((kept | named).items()))


def _problems() -> Json:
    """Return the refusals of all calls by name: written out at each, they are half of the document."""
    return {f"Problem{status}": problem(status) for status in STATUSES}


def _allow_nulls(schemas: Json) -> None:
    """Let a field that a request may leave out be null, where that is the same."""
    for schema in (schemas[kind.__name__] for kind in NULLABLE):
        for name, field in schema["properties"].items():
            if name not in schema["required"] and NULL not in field.get("anyOf", ()):
                said = {word: field.pop(word) for word in ("default", "description") if word in field}
                schema["properties"][name] = {"anyOf": [field, NULL], **said}


def _tighten(schemas: Json) -> None:
    """Add the rules that the decoder's types cannot express: at least one message, one body, the bounds of delays."""
    tighten_pop(schemas)
    schemas["ProduceRequest"]["properties"]["messages"]["minItems"] = 1
    schema = schemas["Message"]
    schema["properties"]["body_base64"]["description"] = "The body in base64, for bytes that are not UTF-8 text."
    days = DELAY_MS_MAX // (24 * 3_600_000)
    schema["properties"]["deliver_time"]["description"] = f"Not delivered before this time; at most {days} days ahead."
    schema["properties"]["delay_ms"]["description"] = "Deliver after this many milliseconds; excludes `deliver_time`."
    for choice in schema["properties"]["delay_ms"]["anyOf"]:
        if choice["type"] == "integer":
            choice["maximum"] = DELAY_MS_MAX


def operation_id(route: APIRoute) -> str:
    """Return the short name of a call in generated clients, `listTopics`: the name of its function, which stays."""
    first, *others = route.name.split("_")
    return first + "".join(map(str.capitalize, others))
