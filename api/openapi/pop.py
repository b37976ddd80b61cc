"""The description of pop and of the calls with handles in `/openapi.json`; FastAPI does not serve them."""

from __future__ import annotations

from typing import Final

from deltamq.api.openapi.messages import EVENT_BODIES, EVENTS_DESCRIPTION, NO_EVENT
from deltamq.api.queue.pop_requests import ARROW_TYPE
from deltamq.api.wire.openapi_parts import REF, Json, name_in_path, problem
from deltamq.mq.limits import WAIT_MS_MAX
from deltamq.mq.wire.pop import (
    AckAnswer,
    AckRequest,
    DeadAnswer,
    DeadRequest,
    InvisibleAnswer,
    InvisibleRequest,
    NackAnswer,
    NackRequest,
    PopAnswer,
    PopRequest,
)

POP_TYPES: Final = [
    PopRequest,
    PopAnswer,
    AckRequest,
    AckAnswer,
    InvisibleRequest,
    InvisibleAnswer,
    NackRequest,
    NackAnswer,
    DeadRequest,
    DeadAnswer,
]

_JSON: Final = "application/json"
_TAG: Final = "pop"
_HANDLE: Final = "1AAAAAAAAAAAAAAAAAaH-wDaXAADqYAABAAAAAAAAAAEgAAAAAcm7BItdD8PWAQAKdHRAYnJva2VyLWEAc538TGYZs0pz5MJJ"
_POP_EXAMPLE: Final[Json] = {
    "messages": [
        {
            "partition": "flights@broker-a",
            "handle": _HANDLE,
            "delivery_attempt": 1,
            "offset": 120,
            "message_id": "7d3f0d9b5e6a4c1200000000",
            "append_time": "2013-01-01T05:15:00.123000Z",
            "body": '{"flight": "UA1545"}',
            "key": "N14228",
            "tag": "departure",
            "born_time": "2013-01-01T05:15:00.000000Z",
        }
    ],
    "pop_time": "2013-01-01T05:15:00.456Z",
    "invisible_ms": 60_000,
    "rest": 17,
    "failed_acks": [],
}


def pop_paths() -> Json:
    """Return the paths of these calls."""
    return {"/v1/groups/{group}/topics/{topic}/pop": {"post": _pop()}} | {
        f"/v1/groups/{{group}}/{call['operationId']}": {"post": call} for call in _with_handles()
    }


def _call(kind: type, answered: type, summary: str, example: Json, answer: Json, *statuses: int) -> Json:
    body = {_JSON: {"schema": {"$ref": f"{REF}{kind.__name__}"}, "example": example}}
    content = {_JSON: {"schema": {"$ref": f"{REF}{answered.__name__}"}, "example": answer}}
    return {
        "tags": [_TAG],
        "operationId": kind.__name__.removesuffix("Request").lower(),
        "summary": summary,
        "parameters": [name_in_path("group", "billing")],
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "Done, except for handles that the answer lists", "content": content},
            **{str(s): problem(s) for s in (400, 404, 408, 413, 415, 422, 429, 500, 503, 507, *statuses)},
        },
    }


def _pop() -> Json:
    summary = "Pop messages, which other clients of the group do not get until the invisible time ends"
    pop = _call(PopRequest, PopAnswer, summary, {"max_messages": 32, "wait_ms": 0, "ack": []}, _POP_EXAMPLE, 409)
    pop["requestBody"]["required"] = False
    pop["parameters"].append(name_in_path("topic", "flights"))
    pop["description"] = f"`Accept`: {_JSON} (default) or {ARROW_TYPE}. {EVENTS_DESCRIPTION}"
    answer = pop["responses"]["200"]
    answer["description"] = "The messages that were popped; perhaps none"
    columns = (
        "The columns of the message row with `partition`, `handle` and `delivery_attempt`; `failed_acks` is JSON in "
        "the schema's metadata `mq-failed-acks`."
    )
    answer["content"][ARROW_TYPE] = {"schema": {"type": "string", "format": "binary", "description": columns}}
    answer["content"] |= EVENT_BODIES
    failed = "Number of handles in `failed_acks`, which is in the schema's metadata `mq-failed-acks`."
    answer["headers"] = {
        "Mq-Pop-Time": {"schema": {"type": "string"}, "description": "`pop_time` of an Arrow answer."},
        "Mq-Invisible-Ms": {"schema": {"type": "integer"}, "description": "`invisible_ms`."},
        "Mq-Rest": {"schema": {"type": "integer"}, "description": "`rest`."},
        "Mq-Failed": {"schema": {"type": "integer"}, "description": failed},
    }
    pop["responses"]["204"] = {**NO_EVENT, "headers": answer["headers"]}
    return pop


def _with_handles() -> list[Json]:
    """Return the calls that take handles of popped messages."""
    handles = {"handles": [_HANDLE]}
    failed = [{"handle": _HANDLE, "code": "handle_expired"}]
    longer = {"handle": _HANDLE, "invisible_ms": 60_000}
    again = "Report failed messages: redelivered by the retry policy or after `delay_ms`; dead after the last attempt"
    return [
        _call(
            AckRequest, AckAnswer, "Acknowledge messages; harmless to repeat", handles, {"acked": 0, "failed": failed}
        ),
        _call(
            InvisibleRequest,
            InvisibleAnswer,
            "Change how long a message stays invisible; returns its new handle",
            longer,
            {"handle": _HANDLE},
            409,
        ),
        _call(NackRequest, NackAnswer, again, {**handles, "delay_ms": 10_000}, {"nacked": 1, "failed": []}),
        _call(
            DeadRequest,
            DeadAnswer,
            "Send messages to the dead letters",
            {**handles, "reason": "cannot be parsed"},
            {"dead": 1, "failed": []},
        ),
    ]


def tighten_pop(schemas: Json) -> None:
    """Remove the maximum of `wait_ms` from the schema: a tool that probes boundaries would wait that long."""
    wait = schemas["PopRequest"]["properties"]["wait_ms"]
    for kind in wait["anyOf"]:
        kind.pop("maximum", None)
    wait["description"] = f"Milliseconds to wait for the first message, at most {WAIT_MS_MAX}."
