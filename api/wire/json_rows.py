"""JSON and NDJSON produce requests: strict decoding into `Rows`.

Every refusal names the field (`messages[3].body_base64`), and for NDJSON the line. Decoding is one pass of a typed
decoder. Checks that a type cannot express are made on whole columns; only after a failure the wrong message is searched
for.
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from deltamq.api.wire.rows import Body, Decoded, Rows
from deltamq.mq.errors import Refused, TooLarge, Unprocessable
from deltamq.mq.limits import (
    HEADER_BYTES_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    PRODUCER_ID_LENGTH_MAX,
    REQUEST_MESSAGES_MAX,
    TAG_BYTES_MAX,
    TIME_US_MAX,
)
from deltamq.mq.names import check_tag, is_tag
from deltamq.mq.wire.produce import Message, ProduceRequest
from deltamq.tables.queue.deliver_times import Times, times_of_lists

_TIME_MAX = datetime.fromtimestamp(TIME_US_MAX // 1_000_000, UTC)
_TIME_MIN = datetime.fromtimestamp(0, UTC)
#: Bytes of lines decoded at once: more would hold the interpreter's lock for too long.
_NDJSON_SLICE_BYTES = 256 * 1024


_REQUEST = msgspec.json.Decoder(ProduceRequest)
#: The decoder's path of a header whose value is not text.
_A_HEADER = re.compile(r"((?:messages\[(\d+)\]|line \d+)\.headers)\[\.\.\.\]")
_HEADER_SHOWN_CHARS = 128
_LINE = msgspec.json.Decoder(Message)


def decode_json(body: bytes | bytearray, now_ms: int) -> Decoded:
    """Decode and check one `application/json` request; delays count from `now_ms`."""
    try:
        request = _REQUEST.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _with_header(refusal(error), body) from None
    decoded = decoded_of(request.messages, len(body), "messages[{}]", now_ms)
    decoded.producer, decoded.expected_offset = request.producer, request.expected_offset
    return decoded


def decode_ndjson(body: bytes | bytearray, now_ms: int) -> Decoded:
    """Decode and check one `application/x-ndjson` request; a refusal names the line, counted from 1."""
    messages: list[Message] = []
    for start, end in _slices(body):
        try:
            messages += _LINE.decode_lines(memoryview(body)[start:end])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _bad_line(body) or refusal(error) from None
        if len(messages) > REQUEST_MESSAGES_MAX:
            break
    try:
        return decoded_of(messages, len(body), "line {}", now_ms)
    except Refused as error:
        raise _with_line(error, body) from None


def _slices(body: bytes | bytearray) -> list[tuple[int, int]]:
    slices = []
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + _NDJSON_SLICE_BYTES) + 1 or len(body)
        slices.append((start, end))
        start = end
    return slices


def _bad_line(body: bytes | bytearray) -> Refused | None:
    for number, line in enumerate(bytes(body).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            _LINE.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            refused = _with_header(refusal(error, prefix=f"line {number}"), line)
            refused.extra["line"] = number
            return refused
    return None


def _with_line(error: Refused, body: bytes | bytearray) -> Refused:
    """Replace the message's index in `error.field` by the number of its line; blank lines count."""
    index = re.match(r"line (\d+)", error.field or "")
    if index is None:
        return error
    filled = (n for n, line in enumerate(bytes(body).split(b"\n"), start=1) if line.strip())
    number = next(n for i, n in enumerate(filled) if i == int(index[1]))
    error.field = f"line {number}" + (error.field or "")[index.end() :]
    error.detail = f"{error.field}: {error.detail.partition(': ')[2]}"
    error.extra["line"] = number
    return error


def _with_header(refused: Refused, raw: bytes | bytearray) -> Refused:
    """Add the name of the header that is not text, which the decoder does not give."""
    field = refused.field or ""
    header = _A_HEADER.fullmatch(field)
    if header is None:
        return refused
    try:
        value = msgspec.json.decode(raw)
        message = value if header[2] is None else value["messages"][int(header[2])]
        name = next(name for name, value in message["headers"].items() if not isinstance(value, str))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        # A later part of the body is wrong, too, or a field is given twice.
        return refused
    refused.field = f"{header[1]}.{_shown(name)}"
    refused.detail = refused.detail.replace(field, refused.field, 1)
    return refused


def _shown(header: str) -> str:
    return header[:_HEADER_SHOWN_CHARS]


# Refusals -----------------------------------------------------------------------------------------------------

_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
_NAMED = re.compile(r"(?:unknown|required) field `([^`]*)`")


def refusal(error: Exception, prefix: str = "") -> Refused:
    """Return msgspec's error as a refusal that names the field."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        detail = "the text is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else text
        where = prefix or "body"
        return Refused(f"{where}: {detail}", code="invalid_json", field=where)
    at = _WHERE.search(text)
    path = at[1] if at else ""
    what = text[: at.start()] if at else text
    named = _NAMED.search(what)
    field = ".".join(filter(None, (prefix, path, named[1] if named else ""))) or "body"
    if named:
        kind = "unknown_field" if "unknown" in what else "missing_field"
        return Refused(f"{field}: {what}", code=kind, field=field)
    limit = re.search(r"(?:<=|>=) (-?\d+)", what)
    if limit:
        return Unprocessable(f"{field}: {what}", field=field, extra={"limit": int(limit[1])})
    if "matching regex" in what:
        detail = f"{field}: 1 to {PRODUCER_ID_LENGTH_MAX} visible ASCII characters"
        return Unprocessable(detail, field=field, extra={"limit": PRODUCER_ID_LENGTH_MAX})
    return Refused(f"{field}: {what}", code="invalid_type", field=field)


# Columns and their checks -------------------------------------------------------------------------------------


def decoded_of(messages: list[Message], nbytes: int, where: str, now_ms: int) -> Decoded:
    """Check the messages of one request of `nbytes`; a refusal names one as `where` does its index."""
    count = len(messages)
    if count == 0:
        raise Unprocessable("messages: at least one message is needed", code="no_messages", field="messages")
    if count > REQUEST_MESSAGES_MAX:
        detail = f"messages: {count} messages; a request takes at most {REQUEST_MESSAGES_MAX}"
        raise TooLarge(detail, code="too_many_messages", field="messages", extra={"limit": REQUEST_MESSAGES_MAX})
    if count == 1 and _is_plain(messages[0], nbytes):
        return _single(messages[0], nbytes, where)
    return _columns(messages, nbytes, where, now_ms)


def _is_plain(message: Message, nbytes: int) -> bool:
    """Whether a message has only short texts and a valid time, as most have."""
    return (
        message.body is not None
        and message.value is UNSET
        and message.body_base64 is None
        and message.deliver_time is None
        and message.delay_ms is None
        and message.headers is None
        and nbytes <= MESSAGE_BYTES_MAX
        and (message.key is None or len(message.key) * 4 <= KEY_BYTES_MAX)
        and (message.tag is None or len(message.tag) * 4 <= TAG_BYTES_MAX)
        and (message.message_id is None or len(message.message_id) * 4 <= MESSAGE_ID_BYTES_MAX)
        and (message.born_time is None or _TIME_MIN <= message.born_time < _TIME_MAX)
    )


def _single(message: Message, nbytes: int, where: str) -> Decoded:
    assert message.body is not None, "a plain message has one"
    if message.tag is not None:
        check_tag(message.tag, where.format(0) + ".tag")
    rows = Rows(
        1,
        nbytes,
        body=[message.body],
        key=None if message.key is None else [message.key],
        tag=None if message.tag is None else [message.tag],
        message_id=None if message.message_id is None else [message.message_id],
        born_time=None if message.born_time is None else [message.born_time],
    )
    return Decoded(rows, None if message.partition is None else [message.partition])


def _columns(messages: list[Message], nbytes: int, where: str, now_ms: int) -> Decoded:
    count = len(messages)
    rows = Rows(
        count,
        nbytes,
        body=_bodies(messages, nbytes, where),
        key=_text([m.key for m in messages], "key", KEY_BYTES_MAX, where),
        tag=_tags(messages, where),
        headers=_headers(messages, where),
        message_id=_text([m.message_id for m in messages], "message_id", MESSAGE_ID_BYTES_MAX, where),
        born_time=_born_times(messages, where),
    )
    values = [None if m.value is UNSET else m.value for m in messages]
    return Decoded(
        rows, _filled([m.partition for m in messages]), _times(messages, now_ms, where), values=_filled(values)
    )


def _filled(column: list[Any]) -> list[Any] | None:
    """Return the column, or None if it holds only None."""
    return None if column.count(None) == len(column) else column


def _times(messages: list[Message], now_ms: int, where: str) -> Times | None:
    deliver_times, delays_ms = [m.deliver_time for m in messages], [m.delay_ms for m in messages]
    if _filled(deliver_times) is None and _filled(delays_ms) is None:
        return None
    return times_of_lists(deliver_times, delays_ms, now_ms, where)


def _bodies(messages: list[Message], nbytes: int, where: str) -> list[Body]:
    bodies: list[Any] = [m.body for m in messages]
    encoded = _filled([m.body_base64 for m in messages])
    if encoded is not None or None in bodies:
        bodies = [_body(m, where.format(i)) for i, m in enumerate(messages)]
    # A text is never longer than its JSON, so no body of a small request can be over the limit.
    if nbytes > MESSAGE_BYTES_MAX:
        for i, body in enumerate(bodies):
            _check_bytes(body, MESSAGE_BYTES_MAX, f"{where.format(i)}.body", TooLarge)
    return bodies


def _body(message: Message, where: str) -> Body:
    given = (message.body is not None) + (message.body_base64 is not None) + (message.value is not UNSET)
    if given != 1:
        detail = f"{where}.body: exactly one of body, body_base64 and value is needed"
        raise Refused(detail, code="invalid_body", field=f"{where}.body")
    if message.value is not UNSET:
        return b""  # made of the value when the topic's schema is known
    if message.body_base64 is None:
        assert message.body is not None
        return message.body
    try:
        return binascii.a2b_base64(message.body_base64, strict_mode=True)
    except ValueError as error:  # binascii.Error is one
        field = f"{where}.body_base64"
        raise Refused(f"{field}: not base64: {error}", code="invalid_base64", field=field) from None


def _check_bytes(value: Body, limit: int, field: str, kind: type[Refused]) -> None:
    if len(value) * 4 > limit and (len(value) if isinstance(value, bytes) else len(value.encode())) > limit:
        code = "message_too_large" if kind is TooLarge else None
        raise kind(f"{field}: longer than {limit} bytes", code=code, field=field, extra={"limit": limit})


def _text(column: list[str | None], name: str, limit: int, where: str) -> list[str | None] | None:
    filled: list[str | None] | None = _filled(column)
    for i, value in enumerate(filled or ()):
        if value is not None and len(value) * 4 > limit:
            _check_bytes(value, limit, f"{where.format(i)}.{name}", Unprocessable)
    return filled


def _tags(messages: list[Message], where: str) -> list[str | None] | None:
    column = _text([m.tag for m in messages], "tag", TAG_BYTES_MAX, where)
    for tag in dict.fromkeys(column or ()):
        if tag is not None and not is_tag(tag):
            at = [m.tag for m in messages].index(tag)
            check_tag(tag, f"{where.format(at)}.tag")
    return column


def _headers(messages: list[Message], where: str) -> list[dict[str, str] | None] | None:
    column: list[dict[str, str] | None] | None = _filled([m.headers for m in messages])
    for i, headers in enumerate(column or ()):
        for name, value in (headers or {}).items():
            if (len(name) + len(value)) * 4 > HEADER_BYTES_MAX:
                field = f"{where.format(i)}.headers.{_shown(name)}"
                _check_bytes(name + value, HEADER_BYTES_MAX, field, Unprocessable)
    return column


def _born_times(messages: list[Message], where: str) -> list[datetime | None] | None:
    column: list[datetime | None] | None = _filled([m.born_time for m in messages])
    for i, time in enumerate(column or ()):
        if time is not None and not _TIME_MIN <= time < _TIME_MAX:
            field = f"{where.format(i)}.born_time"
            raise Unprocessable(f"{field}: must be in [{_TIME_MIN:%Y}, {_TIME_MAX:%Y})", field=field)
    return column
