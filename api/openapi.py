"""What `/openapi.json` says of problems, produce and fetch, which FastAPI does not serve (pops: `api.openapi_pop`).

Schemas come from the very types that decode and encode: msgspec's structs here, pydantic models in the routers.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.dead_letter_json import DeadLetters
from api.decode_json import Message, ProduceRequest
from api.fetch import ARROW_TYPE
from api.message_json import FetchAnswer
from api.openapi_pop import POP_TYPES, pop_paths, tighten_pop
from api.produce import JSON_TYPE, NDJSON_TYPE, ProduceAnswer
from api.sse import EVENTS_TYPE
from mq.limits import (
    DELAY_MS_MAX,
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_MESSAGES_DEFAULT,
    FETCH_MESSAGES_MAX,
    NAME_LENGTH_MAX,
    OFFSET_MAX,
    PRODUCER_ID_LENGTH_MAX,
    PRODUCER_SEQ_MAX,
    WAIT_MS_MAX,
)

__all__ = ["TOPIC_PATTERN", "describe", "problems"]

_REF: Final = "#/components/schemas/"
TOPIC_PATTERN: Final = rf"^[A-Za-z0-9._%|-]{{1,{NAME_LENGTH_MAX}}}$"
Json = dict[str, Any]

_PROBLEM: Final[Json] = {
    "title": "Problem",
    "type": "object",
    "description": "RFC 9457. `code` is stable; `field` names what in the request is wrong, `limit` its limit.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "field": {"type": "string"},
        "limit": {"type": "integer"},
    },
    "additionalProperties": True,
}

#: Status -> (what it means, an example's code and detail).
_STATUSES: Final[dict[int, tuple[str, str, str]]] = {
    400: ("What the request says is wrong; `field` names it", "invalid_request", "offset: not a whole number"),
    404: ("There is no such thing", "topic_not_found", "there is no topic orders"),
    405: ("The path does not take this method", "method_not_allowed", "this path takes POST"),
    408: ("The body did not arrive in time", "request_timeout", "the body did not arrive within 60 s"),
    409: ("The present state forbids it", "conflict", "the topic has 4 partitions and cannot have fewer"),
    412: ("`expected_offset` is not the end offset", "offset_mismatch", "expected_offset is 3, the end offset is 5"),
    413: ("Over a size limit", "request_too_large", "body: at most 67108864 bytes are taken in one request"),
    415: ("Not a media type that this call takes", "unsupported_media_type", "content-type text/csv is not taken"),
    422: ("Well-formed, but against a rule", "invalid_value", "wait_ms: must be from 0 to 20000"),
    429: ("A queue is full; try again after `Retry-After`", "queue_full", "4096 produce requests are waiting"),
    431: ("The headers are over their limit", "headers_too_large", "path and headers: at most 65536 bytes"),
    500: ("The partition is damaged and has stopped, or the service failed", "corrupt", "a file is damaged"),
    503: ("Starting, stopping, or the outcome is not known: repeat", "outcome_unknown", "the outcome is not known"),
    507: ("The disk is full; nothing was stored", "storage_full", "the disk is full; nothing was stored"),
}
_RETRY_AFTER: Final = (429, 503, 507)


def problems(*statuses: int) -> dict[int | str, Json]:
    """The `responses` of a call that can refuse with these statuses."""
    return {status: _problem(status) for status in statuses}


def _problem(status: int) -> Json:
    text, code, detail = _STATUSES[status]
    example = {
        "type": f"urn:deltamq:problem:{code}",
        "title": text.partition(";")[0],
        "status": status,
        "detail": detail,
        "code": code,
    }
    answer: Json = {
        "description": text,
        "content": {"application/problem+json": {"schema": {"$ref": f"{_REF}Problem"}, "example": example}},
    }
    if status in _RETRY_AFTER:
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return answer


def describe(app: FastAPI) -> Json:
    """The whole document, made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, ours = msgspec.json.schema_components(
            [ProduceRequest, Message, ProduceAnswer, FetchAnswer, DeadLetters, *POP_TYPES],
            ref_template=f"{_REF}{{name}}",
        )
        schemas.update(ours)
        schemas["Problem"] = _PROBLEM
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        _tighten(schemas)
        document["paths"]["/v1/topics/{topic}/messages"] = {"post": _produce()}
        document["paths"]["/v1/topics/{topic}/partitions/{partition}/messages"] = {"get": _fetch()}
        document["paths"] |= pop_paths(_REF, _problem, _name)
        for path in document["paths"].values():
            for call in path.values():
                call["responses"] = _with_problems(call["responses"])
        app.openapi_schema = document
    return app.openapi_schema


def _with_problems(responses: Json) -> Json:
    """Without FastAPI's own 422 document, which we never send, and with what any call may answer."""
    kept = {s: r for s, r in responses.items() if "HTTPValidationError" not in str(r)}
    for status in (405, 431, 503):
        kept.setdefault(str(status), _problem(status))
    return dict(sorted(kept.items()))


def _tighten(schemas: Json) -> None:
    """What the decoder's types cannot say: at least one message, one body, one way to say when."""
    tighten_pop(schemas)
    schemas["ProduceRequest"]["properties"]["messages"]["minItems"] = 1
    schema = schemas["Message"]
    schema["oneOf"] = [
        {"required": ["body"], "properties": {"body": {"type": "string"}, "body_base64": {"type": "null"}}},
        {"required": ["body_base64"], "properties": {"body_base64": {"type": "string"}, "body": {"type": "null"}}},
    ]
    schema["properties"]["body_base64"]["description"] = "The body in base64, for bytes that are not UTF-8 text."
    days = DELAY_MS_MAX // (24 * 3_600_000)
    schema["properties"]["deliver_time"]["description"] = f"Not before this time, at most {days} days ahead."
    schema["properties"]["delay_ms"]["description"] = "The same, counted from now; not with `deliver_time`."
    for choice in schema["properties"]["delay_ms"]["anyOf"]:
        if choice["type"] == "integer":
            choice["maximum"] = DELAY_MS_MAX


def _name(kind: str, example: str) -> Json:
    """The path parameter of a topic or a group."""
    schema = {"type": "string", "pattern": TOPIC_PATTERN}
    return {"name": kind, "in": "path", "required": True, "schema": schema, "example": example}


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _integer(low: int, high: int, default: int | None = None) -> Json:
    schema: Json = {"type": "integer", "minimum": low, "maximum": high}
    return schema if default is None else {**schema, "default": default}


def _produce() -> Json:
    message = {"key": "N14228", "tag": "departure", "body": '{"flight": "UA1545"}'}
    return {
        "tags": ["messages"],
        "operationId": "produce",
        "summary": "Append messages; the answer comes after the Delta commit that holds them",
        "parameters": [
            _name("topic", "flights"),
            _query("partition", {"type": "string", "minLength": 3}, "`NAME@BROKER`: the partition of every message."),
            _query(
                "expected_offset", _integer(0, OFFSET_MAX), "Append only at this end offset of the named partition."
            ),
            _query("flush", {"type": "string", "enum": ["sync", "async"]}, "What the answer waits for."),
            _query("ids", {"type": "string", "enum": ["true", "false"]}, "Return `message_ids`."),
            {
                "name": "Producer-Id",
                "in": "header",
                "required": False,
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": PRODUCER_ID_LENGTH_MAX,
                    "pattern": "^[!-~]+$",
                },
                "description": "Idempotent producer of an NDJSON or Arrow request; needs Producer-Seq.",
            },
            {
                "name": "Producer-Seq",
                "in": "header",
                "required": False,
                "schema": _integer(0, PRODUCER_SEQ_MAX),
                "description": "Number of the request, from 0.",
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                JSON_TYPE: {
                    "schema": {"$ref": f"{_REF}ProduceRequest"},
                    "example": {"messages": [message], "producer": {"id": "importer-1", "seq": 17}},
                },
                NDJSON_TYPE: {"schema": {"type": "string", "description": _NDJSON_TEXT}},
                ARROW_TYPE: {
                    "schema": {
                        "type": "string",
                        "format": "binary",
                        "description": "Record batches, uncompressed, with any of the message's columns.",
                    }
                },
            },
        },
        "responses": {
            "200": {
                "description": "Stored",
                "content": {
                    JSON_TYPE: {
                        "schema": {"$ref": f"{_REF}ProduceAnswer"},
                        "example": {
                            "ranges": [
                                {"partition": "flights@broker-a", "base_offset": 120, "count": 3, "indexes": [0, 2, 5]}
                            ],
                            "duplicate": False,
                            "durable": True,
                        },
                    }
                },
            },
            **{str(s): _problem(s) for s in (400, 404, 408, 409, 412, 413, 415, 422, 429, 500, 503, 507)},
        },
    }


def _fetch() -> Json:
    place = {
        "Mq-Status": {"schema": {"type": "string"}, "description": "`status` of an Arrow answer."},
        "Mq-Next-Offset": {"schema": {"type": "integer"}, "description": "The offset to ask for next."},
        "Mq-Min-Offset": {"schema": {"type": "integer"}, "description": "The first offset still stored."},
        "Mq-Max-Offset": {"schema": {"type": "integer"}, "description": "The next offset to be written."},
    }
    return {
        "tags": ["messages"],
        "operationId": "fetch",
        "summary": "Read messages of one partition from an offset on",
        "description": f"`Accept`: {JSON_TYPE} (default), {ARROW_TYPE}, or {EVENTS_TYPE} for a stream of events.",
        "parameters": [
            _name("topic", "flights"),
            {
                "name": "partition",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 3},
                "description": "`NAME@BROKER`",
                "example": "flights@broker-a",
            },
            _query("offset", _integer(0, OFFSET_MAX, 0), "The first offset wanted."),
            _query("max_messages", _integer(1, FETCH_MESSAGES_MAX, FETCH_MESSAGES_DEFAULT), "At most so many."),
            _query(
                "max_bytes", _integer(1, FETCH_BYTES_MAX, FETCH_BYTES_DEFAULT), "About so much; at least one message."
            ),
            # No maximum in the schema: whoever probes boundaries would wait for it.
            _query(
                "wait_ms",
                {"type": "integer", "minimum": 0, "default": 0},
                f"Wait so long for the first message, at most {WAIT_MS_MAX}.",
            ),
            _query("tags", {"type": "string", "pattern": _TAGS_PATTERN}, "`*` or `TagA||TagB`."),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "example": "flights@broker-a:120"},
                "description": f"With {EVENTS_TYPE}: go on after this event.",
            },
        ],
        "responses": {
            "200": {
                "description": "What is there; `status` says if anything is",
                "headers": place,
                "content": {
                    JSON_TYPE: {"schema": {"$ref": f"{_REF}FetchAnswer"}, "example": _FETCH_EXAMPLE},
                    ARROW_TYPE: {"schema": {"type": "string", "format": "binary"}},
                    EVENTS_TYPE: {"schema": {"type": "string"}},
                },
            },
            **{str(s): _problem(s) for s in (400, 404, 422, 429, 500, 503)},
        },
    }


_TAGS_PATTERN: Final = r"^(\*|[^|*\s][^|*]{0,30}(\|\|[^|*\s][^|*]{0,30}){0,8})$"
_NDJSON_TEXT: Final = """One message object a line, for example

    {"key": "N14228", "body": "landed"}
    {"body_base64": "AP8="}"""

_FETCH_EXAMPLE: Final[Json] = {
    "status": "found",
    "messages": [
        {
            "offset": 120,
            "message_id": "7d3f0d9b5e6a4c1200000000",
            "append_time": "2013-01-01T05:15:00.123000Z",
            "body": '{"flight": "UA1545"}',
            "key": "N14228",
            "tag": "departure",
            "born_time": "2013-01-01T05:15:00.000000Z",
        }
    ],
    "next_offset": 121,
    "min_offset": 0,
    "max_offset": 121,
}
