"""The whole of `/openapi.json`: FastAPI's description of its own calls, and ours of the calls that it does not serve.

Schemas come from the types that decode and encode: msgspec's structs, and the routers' pydantic models of answers.
"""

from __future__ import annotations

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.openapi.examples import add_examples
from api.openapi.messages import message_paths
from api.openapi.pop import POP_TYPES, pop_paths, tighten_pop
from api.wire import PROBLEM, REF, Json, problem
from mq.limits import DELAY_MS_MAX
from mq.wire import DeadLetters, FetchAnswer, Message, ProduceAnswer, ProduceRequest

__all__ = ["describe"]


def describe(app: FastAPI) -> Json:
    """Return the whole document; it is made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, ours = msgspec.json.schema_components(
            [ProduceRequest, Message, ProduceAnswer, FetchAnswer, DeadLetters, *POP_TYPES],
            ref_template=f"{REF}{{name}}",
        )
        schemas.update(ours)
        schemas["Problem"] = PROBLEM
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        _tighten(schemas)
        add_examples(schemas)
        document["paths"] |= message_paths() | pop_paths()
        for path in document["paths"].values():
            for call in path.values():
                call["responses"] = _with_problems(call["responses"])
        app.openapi_schema = document
    return app.openapi_schema


def _with_problems(responses: Json) -> Json:
    """Return the responses without FastAPI's own 422, which we never send, and with those that any call may give."""
    kept = {s: r for s, r in responses.items() if "HTTPValidationError" not in str(r)}
    for status in (405, 408, 431, 503):
        kept.setdefault(str(status), problem(status))
    return dict(sorted(kept.items()))


def _tighten(schemas: Json) -> None:
    """Add the rules that the decoder's types cannot express: at least one message, one body, the bounds of delays."""
    tighten_pop(schemas)
    schemas["ProduceRequest"]["properties"]["messages"]["minItems"] = 1
    schema = schemas["Message"]
    schema["oneOf"] = [
        {"required": ["body"], "properties": {"body": {"type": "string"}, "body_base64": {"type": "null"}}},
        {"required": ["body_base64"], "properties": {"body_base64": {"type": "string"}, "body": {"type": "null"}}},
    ]
    schema["properties"]["body_base64"]["description"] = "The body in base64, for bytes that are not UTF-8 text."
    days = DELAY_MS_MAX // (24 * 3_600_000)
    schema["properties"]["deliver_time"]["description"] = f"Not delivered before this time; at most {days} days ahead."
    schema["properties"]["delay_ms"]["description"] = "Deliver after this many milliseconds; excludes `deliver_time`."
    for choice in schema["properties"]["delay_ms"]["anyOf"]:
        if choice["type"] == "integer":
            choice["maximum"] = DELAY_MS_MAX
