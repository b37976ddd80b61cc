"""Parts shared by the descriptions of calls, which `api.openapi.document` makes into one document."""

from __future__ import annotations

from http import HTTPStatus
from types import UnionType
from typing import Any, Final, get_args

from deltamq.mq.limits import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX

#: Prefix of references to schemas.
REF: Final = "#/components/schemas/"
TOPIC_PATTERN: Final = rf"^[A-Za-z0-9._%|-]{{1,{TOPIC_LENGTH_MAX}}}$"
GROUP_PATTERN: Final = rf"^[^\x00-\x1f\x7f/@*]{{1,{GROUP_LENGTH_MAX}}}$"
Json = dict[str, Any]
#: The answers of a call, by status.
Responses = dict[int | str, Json]

PROBLEM: Final[Json] = {
    "title": "Problem",
    "type": "object",
    "description": "RFC 9457. `code` is stable; `field` is the part of the request that is wrong, `limit` its limit.",
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
STATUSES: Final[dict[int, tuple[str, str, str]]] = {
    400: ("The request is not valid; `field` says which part", "invalid_request", "offset: not a whole number"),
    401: ("With authentication: no valid key", "unauthenticated", "send a key: `Authorization: Bearer mqk_...`"),
    403: ("Not granted by the access rules", "forbidden", "principal reports may not publish topic orders"),
    404: ("The named thing does not exist", "topic_not_found", "there is no topic orders"),
    405: ("The path does not take this method", "method_not_allowed", "this path takes POST"),
    408: ("The body did not arrive in time", "request_timeout", "the body did not arrive within 60 s"),
    409: ("The present state forbids it", "conflict", "the topic has 4 partitions and cannot have fewer"),
    412: ("`expected_offset` is not the end offset", "offset_mismatch", "expected_offset is 3, the end offset is 5"),
    413: ("Over a size limit", "request_too_large", "body: at most 67108864 bytes are taken in one request"),
    415: ("Not a media type that this call takes", "unsupported_media_type", "content-type text/csv is not taken"),
    422: ("Well-formed, but a value is not allowed", "invalid_value", "wait_ms: must be from 0 to 20000"),
    429: ("A queue is full; try again after `Retry-After`", "queue_full", "4096 produce requests are waiting"),
    431: ("The headers are over their limit", "headers_too_large", "path and headers: at most 65536 bytes"),
    500: ("The partition is damaged and has stopped, or the service failed", "corrupt", "a file is damaged"),
    503: ("Not served now, or the outcome is unknown: repeat", "outcome_unknown", "the outcome is not known"),
    507: ("The disk is full; nothing was stored", "storage_full", "the disk is full; nothing was stored"),
}
_RETRY_AFTER: Final = (429, 503, 507)


#: The structs of bodies, which the document describes.
BODIES: Final[list[type]] = []
#: Those of requests in which null counts as a field left out.
NULLABLE: Final[list[type]] = []


def described(kind: type) -> Json:
    """Return the schema of a struct: a reference to its description."""
    if kind not in BODIES:
        BODIES.append(kind)
    return {"$ref": f"{REF}{kind.__name__}"}


def answers(kind: type | UnionType, *statuses: int, example: Json | None = None, status: int = 200) -> Responses:
    """Return the `responses` of a call that answers with `kind`, one of several if it is a union, or refuses so.

    The call gives it to its route, and answers by `json_answer`.
    """
    schemas = [described(one) for one in get_args(kind) or (kind,)]
    content: Json = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    if example is not None:
        content["example"] = example
    success = {"description": "Success", "content": {"application/json": content}}
    return {status: success, **problems(*statuses)}


def answers_or_makes(kind: type, *statuses: int) -> Responses:
    """Return the `responses` of a call that changes the thing that `kind` shows, or makes it (201)."""
    made = answers(kind, status=201)
    made[201]["description"] = "Created"
    return {**answers(kind, *statuses), **made}


def problems(*statuses: int) -> Responses:
    """Return the `responses` of a call that can refuse with these statuses."""
    return {status: problem(status) for status in statuses}


def problem(status: int) -> Json:
    text, code, detail = STATUSES[status]
    example = {
        "type": f"urn:deltamq:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    answer: Json = {
        "description": text,
        "content": {"application/problem+json": {"schema": {"$ref": f"{REF}Problem"}, "example": example}},
    }
    if status in _RETRY_AFTER:
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return answer


def name_in_path(kind: str, example: str) -> Json:
    """Return the path parameter of a topic or a group."""
    schema = {"type": "string", "pattern": GROUP_PATTERN if kind == "group" else TOPIC_PATTERN}
    return {"name": kind, "in": "path", "required": True, "schema": schema, "example": example}


def query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def header(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}


def whole(low: int, high: int, default: int | None = None) -> Json:
    schema: Json = {"type": "integer", "minimum": low, "maximum": high}
    return schema if default is None else {**schema, "default": default}
