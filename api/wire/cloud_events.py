"""CloudEvents 1.0 over HTTP: events as messages, and messages as events (SPEC SEND-12, CONS-15).

    event             message
    each attribute    header `ce_NAME`, as CloudEvents has it for Kafka: so it is an event for Kafka's clients
    id                besides, `message_id`
    subject           besides, `key`
    time              besides, `born_time`
    datacontenttype   header `content-type`
    data              body, byte by byte as it was sent

A message that was sent otherwise is an event as well: its source is the topic, its type its tag. Where a message is
and its handle are attributes beside: `mqpartition`, `mqoffset`, `mqhandle`, `mqattempt`.

    mode         request's Content-Type               Accept                      answer
    structured   application/cloudevents+json         the same                    one event, or 204
    batched      application/cloudevents-batch+json   the same                    all that a JSON answer has
    binary       any other, with headers `ce-NAME`    application/cloudevents     one event, or 204
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from deltamq.api.wire.answer import Answer, Header
from deltamq.api.wire.json_rows import decoded_of, refusal
from deltamq.api.wire.request import Headers, Scope, preferred
from deltamq.api.wire.rows import Decoded
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import KIB
from deltamq.mq.wire.pop import PopAnswer, PoppedMessage
from deltamq.mq.wire.produce import Message
from deltamq.mq.wire.stored import FetchAnswer, StoredMessage

STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
#: By this name `Accept` asks for binary mode, in which the answer has the media type of the data.
BINARY: Final = "application/cloudevents"
_MODES: Final = (STRUCTURED, BATCHED, BINARY)
#: Most attributes, and their bytes, of an event that goes out in binary mode.
_ATTRIBUTES_MAX: Final = 64
_ATTRIBUTES_BYTES_MAX: Final = 16 * KIB
_JSON: Final = "application/json"
#: All that fetch and pop answer.
_OFFERED: Final = (_JSON, "application/vnd.apache.arrow.stream", "text/event-stream", *_MODES)
#: The type of a message that was not sent as an event and has no tag.
MESSAGE_TYPE: Final = "deltamq.message"
_VERSION: Final = "1.0"
_REQUIRED: Final = ("specversion", "id", "source", "type")
#: Attributes of an answer; those of another place are not stored.
_OF_PLACE: Final = frozenset({"mqpartition", "mqoffset", "mqhandle", "mqattempt"})
#: Attributes that are texts, and not empty.
_TEXTS: Final = frozenset({*_REQUIRED, "subject", "time", "datacontenttype", "dataschema"})
_NAME: Final = re.compile(r"[a-z0-9]+")
_JSON_KIND: Final = re.compile(r"[^/;\s]+/([^/;\s]+\+)?json", re.IGNORECASE)
#: A media type that may stand in a header as it is.
_KIND: Final = re.compile(r"[!-~][ -~]*")
#: What stands for itself in a header's value.
_PLAIN: Final = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_EVENT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EVENTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_VALUE: Final = msgspec.json.Decoder(str | bool | int | None)
_STRING: Final = msgspec.json.Decoder(str)

#: Returns how a request names an attribute of its event with this index.
_Naming: TypeAlias = Callable[[int, str], str]
#: Decodes a body, whose delays count from a time.
_Decode: TypeAlias = Callable[[bytes | bytearray, int], Decoded]


# Events in ----------------------------------------------------------------------------------------------------


def decode_structured(body: bytes | bytearray, now_ms: int) -> Decoded:
    """Decode and check one event in JSON; a refusal names the attribute."""

    def named(_: int, name: str) -> str:
        return name

    return _decoded([_of_json(_parsed(_EVENT, body), 0, named)], len(body), named, now_ms)


def decode_batch(body: bytes | bytearray, now_ms: int) -> Decoded:
    """Decode and check events in a JSON array; a refusal names the event and the attribute, `[3].source`."""

    def named(index: int, name: str) -> str:
        return f"[{index}].{name}"

    events = [_of_json(event, index, named) for index, event in enumerate(_parsed(_EVENTS, body))]
    return _decoded(events, len(body), named, now_ms)


def binary_decoder(headers: Headers) -> _Decode | None:
    """Return what decodes an event whose attributes are headers `ce-NAME`; None if the request is none."""
    if b"ce-specversion" not in headers and b"ce-id" not in headers:
        return None

    def named(_: int, name: str) -> str:
        return {"datacontenttype": "content-type", "data": "body"}.get(name, f"ce-{name}")

    def decode(body: bytes | bytearray, now_ms: int) -> Decoded:
        attributes = {
            name[3:].decode("latin-1"): _of_header(value) for name, value in headers.items() if name[:3] == b"ce-"
        }
        kind = headers.get(b"content-type")
        if kind is not None:
            attributes["datacontenttype"] = kind.decode("latin-1").strip()
        event = _Event(_checked(attributes, 0, named), *_either(bytes(body)))
        return _decoded([event], len(body), named, now_ms)

    return decode


class _Event(NamedTuple):
    """An event's attributes as texts, and its data as text or in base64."""

    attributes: Mapping[str, str]
    text: str | None
    encoded: str | None


def _parsed(decoder: msgspec.json.Decoder[Any], body: bytes | bytearray | msgspec.Raw, field: str = "") -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error, prefix=field) from None


def _of_header(value: bytes) -> str:
    """Return an attribute of a header's value, in which other bytes are percent-encoded."""
    text = value.decode("latin-1").strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    return unquote(text)


def _either(data: bytes) -> tuple[str | None, str | None]:
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def _of_json(event: dict[str, msgspec.Raw], index: int, named: _Naming) -> _Event:
    data, encoded = event.pop("data", None), event.pop("data_base64", None)
    values = {name: _parsed(_VALUE, raw, named(index, name)) for name, raw in event.items()}
    attributes = _checked(values, index, named)
    if data is not None and encoded is not None:
        raise _wrong(named(index, "data"), "only one of data and data_base64", "invalid_body")
    if encoded is not None:
        return _Event(attributes, None, _parsed(_STRING, encoded, named(index, "data_base64")))
    if data is None:
        return _Event(attributes, "", None)
    if not _is_json(attributes.get("datacontenttype", _JSON)):
        return _Event(attributes, _parsed(_STRING, data, named(index, "data")), None)
    try:
        return _Event(attributes, bytes(data).decode(), None)
    except UnicodeDecodeError as error:
        raise refusal(error, prefix=named(index, "data")) from None


def _is_json(kind: str) -> bool:
    return _JSON_KIND.fullmatch(kind.partition(";")[0].strip()) is not None


def _checked(values: Mapping[str, str | bool | int | None], index: int, named: _Naming) -> dict[str, str]:
    """Return an event's attributes as texts; null counts as left out."""
    attributes = {name: value for name, value in values.items() if value is not None}
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise _wrong(named(index, name), "names of attributes have lower-case letters and digits", "unknown_field")
        if name in _TEXTS and not isinstance(value, str):
            raise _wrong(named(index, name), "must be a text", "invalid_type")
    for name in _REQUIRED:
        if not attributes.get(name):
            raise _wrong(named(index, name), "an event must have it", "missing_field")
    for name in _TEXTS & attributes.keys():
        if not attributes[name]:
            raise _wrong(named(index, name), "must not be empty", "invalid_value")
    if attributes["specversion"] != _VERSION:
        field = named(index, "specversion")
        raise Unprocessable(f"{field}: must be {_VERSION!r}, not {attributes['specversion']!r}", field=field)
    return {n: v if isinstance(v, str) else msgspec.json.encode(v).decode() for n, v in attributes.items()}


def _wrong(field: str, detail: str, code: str) -> Refused:
    return Refused(f"{field}: {detail}", code=code, field=field)


def _decoded(events: Sequence[_Event], nbytes: int, named: _Naming, now_ms: int) -> Decoded:
    messages: list[Message] = []
    try:
        messages += map(_message, events)
        return decoded_of(messages, nbytes, "messages[{}]", now_ms)
    except msgspec.ValidationError as error:
        raise _renamed(refusal(error), len(messages), named) from None
    except Refused as error:
        raise _renamed(error, len(messages), named) from None


def _message(event: _Event) -> Message:
    left_out = _OF_PLACE | {"datacontenttype"}
    headers = {f"ce_{name}": value for name, value in event.attributes.items() if name not in left_out}
    if "datacontenttype" in event.attributes:
        headers["content-type"] = event.attributes["datacontenttype"]
    fields = {
        "body": event.text,
        "body_base64": event.encoded,
        "headers": headers,
        "message_id": event.attributes["id"],
        "key": event.attributes.get("subject"),
        "born_time": event.attributes.get("time"),
    }
    return msgspec.convert(fields, Message)


#: The field of a message that is refused, and which attribute it was.
_FIELD: Final = re.compile(r"(?:messages\[(?P<index>\d+)\]\.)?(?P<name>\w+)(?:\.(?P<header>.+))?")
_ATTRIBUTES: Final = {
    "message_id": "id",
    "key": "subject",
    "born_time": "time",
    "body": "data",
    "body_base64": "data_base64",
    "headers": "attributes",
}


def _renamed(error: Refused, index: int, named: _Naming) -> Refused:
    """Name the attribute in place of the message's field."""
    found = _FIELD.fullmatch(error.field or "")
    if found is None or found["name"] not in _ATTRIBUTES:
        return error
    header = found["header"]
    name = _ATTRIBUTES[found["name"]] if header is None else header.removeprefix("ce_")
    field = named(int(found["index"] or index), "datacontenttype" if name == "content-type" else name)
    error.detail = error.detail.replace(error.field or "", field, 1)
    error.field = field
    return error


# Events out ---------------------------------------------------------------------------------------------------


def asked_events(scope: Scope) -> str | None:
    """Return the media type by which a request asks for events, None if it does not; it asks for JSON from then on."""
    for name, value in scope["headers"]:
        if name == b"accept" and b"cloudevents" in value.lower():
            kind = preferred({name: value}, _OFFERED)
            if kind in _MODES:
                scope["headers"] = [header for header in scope["headers"] if header[0] != b"accept"]
                return kind
    return None


def fetched_events(answer: Answer, kind: str, topic: str, partition: str) -> Answer:
    """Return a fetch's JSON answer as events; its other fields are in `Mq-*` headers, as with Arrow."""
    if answer.status != 200:
        return answer
    fetched = msgspec.json.decode(_whole(answer), type=FetchAnswer)
    messages, next_offset = fetched.messages, fetched.next_offset
    if kind != BATCHED and len(messages) > 1:
        messages, next_offset = messages[:1], messages[0].offset + 1
    headers = [
        (b"mq-status", fetched.status.encode()),
        (b"mq-next-offset", b"%d" % next_offset),
        (b"mq-min-offset", b"%d" % fetched.min_offset),
        (b"mq-max-offset", b"%d" % fetched.max_offset),
    ]
    return _answer([_event_of(one, topic, partition) for one in messages], kind, headers)


def popped_events(answer: Answer, kind: str, topic: str) -> Answer:
    """Return a pop's JSON answer as events; its other fields are in `Mq-*` headers, refused handles only counted."""
    if answer.status != 200:
        return answer
    popped = msgspec.json.decode(_whole(answer), type=PopAnswer)
    assert kind == BATCHED or len(popped.messages) <= 1, "no other was asked for: it would be hidden"
    headers = [
        (b"mq-pop-time", popped.pop_time.encode()),
        (b"mq-invisible-ms", b"%d" % popped.invisible_ms),
        (b"mq-rest", b"%d" % popped.rest),
        (b"mq-failed", b"%d" % len(popped.failed_acks)),
    ]
    return _answer([_event_of(one, topic, one.partition) for one in popped.messages], kind, headers)


def _whole(answer: Answer) -> bytes | memoryview:
    assert isinstance(answer.body, (bytes, memoryview)), "JSON is sent whole"
    return answer.body


def _answer(events: list[_Event], kind: str, headers: list[Header]) -> Answer:
    if kind != BATCHED and not events:
        return Answer(204, headers, b"")
    if kind == BINARY and not _fits_headers(events[0]):
        kind = STRUCTURED
    if kind == BINARY:
        body, attributes = _data(events[0]), dict(events[0].attributes)
        if body:
            headers.append((b"content-type", attributes.pop("datacontenttype", _JSON).encode()))
        headers += [(b"ce-" + name.encode(), quote(value, safe=_PLAIN).encode()) for name, value in attributes.items()]
    else:
        shown = [_as_json(event) for event in events]
        body = msgspec.json.encode(shown if kind == BATCHED else shown[0])
        headers.append((b"content-type", f"{kind}; charset=utf-8".encode()))
    return Answer(200, [*headers, (b"content-length", b"%d" % len(body))], body)


def _fits_headers(event: _Event) -> bool:
    """Whether clients of HTTP read the event's attributes as headers: the least of their limits are about twice."""
    attributes = event.attributes
    nbytes = sum(len(name) + len(value) for name, value in attributes.items())
    return len(attributes) <= _ATTRIBUTES_MAX and nbytes <= _ATTRIBUTES_BYTES_MAX


def _event_of(message: StoredMessage | PoppedMessage, topic: str, partition: str) -> _Event:
    headers = message.headers or {}
    sent_as = {name[3:]: value for name, value in headers.items() if name[:3] == "ce_" and value}
    attributes = {
        "specversion": _VERSION,
        "id": message.message_id or f"{partition}:{message.offset}",
        "source": f"/v1/topics/{quote(topic, safe='')}",
        "type": message.tag or MESSAGE_TYPE,
    }
    if sent_as.get("specversion") == _VERSION:
        attributes |= {name: value for name, value in sent_as.items() if _NAME.fullmatch(name) and name != "data"}
    else:
        attributes["time"] = message.born_time or message.append_time
        if message.key:
            attributes["subject"] = message.key
    kind = headers.get("content-type")
    attributes |= {"datacontenttype": kind} if kind and _KIND.fullmatch(kind) else _guessed(message)
    attributes |= {"mqpartition": partition, "mqoffset": str(message.offset)}
    if isinstance(message, PoppedMessage):
        attributes |= {"mqhandle": message.handle, "mqattempt": str(message.delivery_attempt)}
    return _Event(attributes, message.body, message.body_base64)


def _guessed(message: StoredMessage | PoppedMessage) -> dict[str, str]:
    """Return the media type of a body without one: none for JSON, which is what an event's data is then."""
    if message.body is None:
        return {"datacontenttype": "application/octet-stream"}
    if not message.body or _is_json_text(message.body):
        return {}
    return {"datacontenttype": "text/plain; charset=utf-8"}


def _is_json_text(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _data(event: _Event) -> bytes:
    return base64.b64decode(event.encoded or "") if event.text is None else event.text.encode()


def _as_json(event: _Event) -> dict[str, object]:
    shown: dict[str, object] = dict(event.attributes)
    if not _is_json(event.attributes.get("datacontenttype", _JSON)) and event.text is not None:
        shown["data"] = event.text
    elif event.text is not None and _is_json_text(event.text):
        shown["data"] = msgspec.Raw(event.text.encode())
    elif event.text != "":
        shown["data_base64"] = base64.b64encode(_data(event)).decode() if event.encoded is None else event.encoded
    return shown
