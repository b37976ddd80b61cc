"""The description of produce and fetch in `/openapi.json`; FastAPI does not serve them."""

from __future__ import annotations

from typing import Final

from deltamq.api.routes.fetch import ARROW_TYPE, EVENTS_TYPE
from deltamq.api.routes.produce import JSON_TYPE, NDJSON_TYPE
from deltamq.api.wire.cloud_events import BATCHED, BINARY, STRUCTURED
from deltamq.api.wire.openapi_parts import GROUP_PATTERN, REF, Json, header, name_in_path, problem, query, whole
from deltamq.mq.limits import (
    COMMIT_WINDOW_MS_MAX,
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_MESSAGES_DEFAULT,
    FETCH_MESSAGES_MAX,
    FILTER_CHARS_MAX,
    OFFSET_MAX,
    PRODUCER_ID_LENGTH_MAX,
    PRODUCER_SEQ_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.wire.groups import CLIENT_PATTERN
from deltamq.mq.wire.pop import FILTER_DESCRIPTION
from deltamq.mq.wire.produce import SEQ
from deltamq.tables.schema import HEADERS, MESSAGE_SCHEMA

_TAGS_PATTERN: Final = r"^(\*|[^|*&,\s]{1,31}(\|\|[^|*&,\s]{1,31}){0,8})$"
#: The lines are a description, not a `value`: tools that probe calls by their examples cannot write this media type.
_NDJSON_EXAMPLE: Final[Json] = {
    "summary": "Two messages",
    "description": """    {"key": "N14228", "body": "landed"}
    {"body_base64": "AP8="}
""",
}
_ARROW_REQUEST: Final = f"""An Arrow IPC stream, its batches uncompressed, with the column `body` and any of the others:

- `body`: binary or string; fixed-size and large types, too
- `key`, `tag`, `message_id`, `partition` (`NAME@BROKER`): string or large string
- `headers`: {HEADERS}
- `born_time`, `deliver_time`: timestamp of any unit with a time zone
- `delay_ms`: an integer"""
_ARROW_ANSWER: Final = "An Arrow IPC stream of " + ", ".join(f"`{one.name}`: {one.type}" for one in MESSAGE_SCHEMA)
_EVENTS_EXAMPLE: Final = """id: flights@broker-a:120
data: {"offset":120,"message_id":"7d3f0d9b5e6a4c1200000000","append_time":"2013-01-01T05:15:00.123000Z","body":"landed"}

: waiting

"""

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

_TEXT: Final[Json] = {"type": "string", "minLength": 1}
_MAYBE: Final[Json] = {"type": ["string", "null"], "minLength": 1}
CLOUD_EVENT: Final[Json] = {
    "title": "CloudEvent",
    "description": "An event of CloudEvents 1.0; attributes beside these are its extensions. `id` is the message's id,"
    " `subject` its key, `data` its body; all attributes are its headers, `ce_source`. In an answer `mqpartition` and"
    " `mqoffset` say where it is, and a pop's has `mqhandle` and `mqattempt`.",
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"enum": ["1.0"]},
        **dict.fromkeys(("id", "source", "type"), _TEXT),
        **dict.fromkeys(("subject", "datacontenttype", "dataschema"), _MAYBE),
        "time": {**_MAYBE, "format": "date-time"},
        "data": {"description": "JSON, or a text if `datacontenttype` says so."},
        "data_base64": {"type": "string", "description": "Other bytes, in base64."},
    },
    "additionalProperties": True,
}
_EVENT: Final[Json] = {
    "specversion": "1.0",
    "id": "7d3f0d9b5e6a4c12",
    "source": "/airports/EWR",
    "type": "org.example.departure",
    "subject": "N14228",
    "time": "2013-01-01T05:15:00Z",
    "data": {"flight": "UA1545"},
}
#: Bodies with one event, and with several.
EVENT_BODIES: Final[Json] = {
    STRUCTURED: {"schema": {"$ref": f"{REF}CloudEvent"}, "example": _EVENT},
    BATCHED: {"schema": {"type": "array", "items": {"$ref": f"{REF}CloudEvent"}}, "example": [_EVENT]},
}
_BINARY_REQUEST: Final = (
    "A request with the headers `ce-specversion`, `ce-id`, `ce-source` and `ce-type` is an event of CloudEvents 1.0 in"
    " binary mode: its body, of any media type, is the event's data."
)
EVENTS_DESCRIPTION: Final = (
    f"For CloudEvents {BATCHED}, or {STRUCTURED} or (binary mode) {BINARY} for one message; the other fields are in"
    " `Mq-*` headers."
)
NO_EVENT: Final[Json] = {"description": f"There is no message for {STRUCTURED} or {BINARY}."}


def message_paths() -> Json:
    """Return the paths of produce and fetch."""
    return {
        "/v1/topics/{topic}/messages": {"post": _produce()},
        "/v1/topics/{topic}/partitions/{partition}/messages": {"get": _fetch()},
    }


def _produce() -> Json:
    stored = {
        "ranges": [{"partition": "flights@broker-a", "base_offset": 120, "count": 3, "indexes": [0, 2, 5]}],
        "duplicate": False,
        "durable": True,
    }
    content = {JSON_TYPE: {"schema": {"$ref": f"{REF}ProduceAnswer"}, "example": stored}}
    return {
        "tags": ["messages"],
        "operationId": "produce",
        "summary": "Append messages; the answer comes after the Delta commit that holds them",
        "description": _BINARY_REQUEST,
        "parameters": _produce_parameters(),
        "requestBody": {"required": True, "content": _produce_bodies()},
        "responses": {
            "200": {"description": "Stored", "content": content},
            **{str(s): problem(s) for s in (400, 404, 408, 409, 412, 413, 415, 422, 429, 500, 503, 507)},
        },
    }


def _produce_parameters() -> list[Json]:
    id_schema = {"type": "string", "minLength": 1, "maxLength": PRODUCER_ID_LENGTH_MAX, "pattern": "^[!-~]+$"}
    return [
        name_in_path("topic", "flights"),
        query(
            "partition",
            {"type": "string", "minLength": 3},
            "The partition (or logical queue) of every message.",
        ),
        query("expected_offset", whole(0, OFFSET_MAX), "Append only at this end offset of the named partition."),
        query("flush", {"type": "string", "enum": ["sync", "async"]}, "Answer after the fsync or before it."),
        query(
            "commit_window_ms",
            whole(0, COMMIT_WINDOW_MS_MAX),
            "How long the messages may wait for others that share their commit, if the topic's window is longer.",
        ),
        query("ids", {"type": "string", "enum": ["true", "false"]}, "Return `message_ids`."),
        header("Producer-Id", id_schema, "Idempotent producer's id, for NDJSON and Arrow; needs Producer-Seq."),
        header("Producer-Seq", {**whole(0, PRODUCER_SEQ_MAX), "description": SEQ}, "Number of the request, from 0."),
    ]


def _produce_bodies() -> Json:
    """Return the request bodies by media type."""
    message = {"key": "N14228", "tag": "departure", "body": '{"flight": "UA1545"}'}
    return {
        JSON_TYPE: {
            "schema": {"$ref": f"{REF}ProduceRequest"},
            "example": {"messages": [message], "producer": {"id": "importer-1", "seq": 17}},
        },
        NDJSON_TYPE: {
            "schema": {"type": "string", "description": "One JSON message object per line."},
            "examples": {"lines": _NDJSON_EXAMPLE},
        },
        ARROW_TYPE: {"schema": {"type": "string", "format": "binary", "description": _ARROW_REQUEST}},
        **EVENT_BODIES,
    }


def _fetch() -> Json:
    place = {
        "Mq-Status": {"schema": {"type": "string"}, "description": "`status` of an Arrow answer."},
        "Mq-Next-Offset": {"schema": {"type": "integer"}, "description": "The offset to ask for next."},
        "Mq-Min-Offset": {"schema": {"type": "integer"}, "description": "The first offset still stored."},
        "Mq-Max-Offset": {"schema": {"type": "integer"}, "description": "The next offset to be written."},
    }
    content = {
        JSON_TYPE: {"schema": {"$ref": f"{REF}FetchAnswer"}, "example": _FETCH_EXAMPLE},
        ARROW_TYPE: {"schema": {"type": "string", "format": "binary", "description": _ARROW_ANSWER}},
        EVENTS_TYPE: {"schema": {"type": "string"}, "example": _EVENTS_EXAMPLE},
        **EVENT_BODIES,
    }
    return {
        "tags": ["messages"],
        "operationId": "fetch",
        "summary": "Read messages of one partition from an offset on",
        "description": f"`Accept`: {JSON_TYPE} (default), {ARROW_TYPE}, or {EVENTS_TYPE} for a stream of events. If "
        "the stream cannot go on (its topic was deleted, the client may not read on), the last event is `refused`, "
        f"with `code` and `detail`. {EVENTS_DESCRIPTION}",
        "parameters": _fetch_parameters(),
        "responses": {
            "200": {"description": "The messages found; `status` says if any", "headers": place, "content": content},
            "204": {**NO_EVENT, "headers": place},
            **{str(s): problem(s) for s in (400, 404, 409, 422, 429, 500, 503)},
        },
    }


def _fetch_parameters() -> list[Json]:
    partition = {
        "name": "partition",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 3},
        "description": "`NAME@BROKER`",
        "example": "flights@broker-a",
    }
    # No maximum in the schema: a tool that probes boundaries would wait that long.
    wait = {"type": "integer", "minimum": 0, "default": 0}
    event = {"type": "string", "example": "flights@broker-a:120"}
    client = {"type": "string", "pattern": CLIENT_PATTERN}
    return [
        name_in_path("topic", "flights"),
        partition,
        query("offset", whole(0, OFFSET_MAX, 0), "The first offset wanted."),
        query("max_messages", whole(1, FETCH_MESSAGES_MAX, FETCH_MESSAGES_DEFAULT), "Maximum number of messages."),
        query("max_bytes", whole(1, FETCH_BYTES_MAX, FETCH_BYTES_DEFAULT), "Approximate bytes; at least one message."),
        query("wait_ms", wait, f"Milliseconds to wait for the first message, at most {WAIT_MS_MAX}."),
        query("tags", {"type": "string", "pattern": _TAGS_PATTERN}, "`*` for all messages, or `TagA||TagB`."),
        query("filter", {"type": "string", "minLength": 1, "maxLength": FILTER_CHARS_MAX}, FILTER_DESCRIPTION),
        query("group", {"type": "string", "pattern": GROUP_PATTERN}, "Read as a consumer of this group."),
        query("client_id", client, "The client that reads; in an exclusive group it must hold the pull lock."),
        query("topic_id", {"type": "string"}, "The topic's id when the offset was read; refused if made again."),
        header("Last-Event-ID", event, f"With {EVENTS_TYPE}: continue after this event."),
    ]
