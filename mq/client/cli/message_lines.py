"""Messages as the lines that `deltamq consume` prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from deltamq.mq.client.cli.console import one_line
from deltamq.mq.client.messages.received import PoppedMessage, ReceivedMessage

Line = Callable[[ReceivedMessage], bytes]


def write_lines(messages: Sequence[ReceivedMessage], line: Line) -> None:
    """Write a line for each message, and flush."""
    if messages:
        sys.stdout.buffer.write(b"".join(map(line, messages)))
        sys.stdout.buffer.flush()


def text_line(message: ReceivedMessage) -> bytes:
    """Return a line for people: partition and offset, key, tag, body; a terminal obeys nothing in it."""
    body = message.body.decode("utf-8", "backslashreplace")
    cells = (f"{message.partition}:{message.offset}", message.key or "", message.tag or "", body)
    return "\t".join(map(one_line, cells)).encode() + b"\n"


def json_line(message: ReceivedMessage) -> bytes:
    """Return a line for machines: a JSON object."""
    document: dict[str, Any] = {"partition": message.partition, "offset": message.offset}
    try:
        document["body"] = message.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = message.body
    for name in ("key", "tag", "headers", "message_id", "born_time", "append_time"):
        value = getattr(message, name)
        if value is not None:
            document[name] = value
    if isinstance(message, PoppedMessage):
        document["delivery_attempt"] = message.delivery_attempt
        if message.origin is not None:
            document["origin"] = message.origin
    return msgspec.json.encode(document) + b"\n"
