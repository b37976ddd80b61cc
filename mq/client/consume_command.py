"""`deltamq consume`: print the messages of a topic, by offset; its place is forgotten at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from mq.client.console import service_options
from mq.client.pull import PullConsumer, Start
from mq.client.received import ReceivedMessage

__all__ = ["consume", "parse_start"]

_POLL_MESSAGES: Final = 5_000
_POLL_MS: Final = 1_000


def parse_start(text: str) -> Start:
    """What `--from` says: first, last, an offset, or an RFC 3339 time (UTC where it names no zone)."""
    if text in ("first", "last"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not first, last, an offset or a time", param_hint="--from") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@click.command()
@click.argument("topic")
@click.option("--partition", "partitions", multiple=True, help="NAME@BROKER; may be repeated. Default: all.")
@click.option("--from", "start", default="first", show_default=True, help="first, last, OFFSET or TIME (RFC 3339).")
@click.option("--max", "max_messages", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--follow", is_flag=True, help="Go on waiting for new messages; without it, stop at the present end.")
@click.option("--tags", default="*", show_default=True, help="TagA||TagB: only messages with one of these tags.")
@service_options
def consume(
    topic: str,
    partitions: tuple[str, ...],
    start: str,
    max_messages: int | None,
    follow: bool,
    tags: str,
    url: str,
    token: str | None,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC, one a line: partition:offset, key, tag, body; or JSON with --json."""
    where = parse_start(start)
    line = _json_line if as_json else _text_line
    with PullConsumer(url, topic, partitions=partitions or None, start=where, tags=tags, token=token) as consumer:
        polls = _polls(consumer, follow=follow, max_messages=max_messages)
        for messages in polls:
            _write(messages, line)


def _polls(consumer: PullConsumer, *, follow: bool, max_messages: int | None) -> Iterator[list[ReceivedMessage]]:
    """What the consumer finds, up to the end offsets of this moment (or for ever) and to `max_messages`."""
    ends = {} if follow else consumer.end_offsets()
    left = max_messages
    while follow or any(consumer.position(name) < end for name, end in ends.items()):
        found = consumer.poll(_POLL_MESSAGES if left is None else min(left, _POLL_MESSAGES), _POLL_MS)
        yield found if follow else [message for message in found if message.offset < ends[message.partition]]
        if left is not None:
            left -= len(found)
            if left <= 0:
                return


def _write(messages: list[ReceivedMessage], line: Callable[[ReceivedMessage], bytes]) -> None:
    if messages:
        sys.stdout.buffer.write(b"".join(map(line, messages)))
        sys.stdout.buffer.flush()


def _text_line(message: ReceivedMessage) -> bytes:
    body = message.body.decode("utf-8", "backslashreplace")
    cells = (f"{message.partition}:{message.offset}", message.key or "", message.tag or "", body)
    return "\t".join(cells).encode() + b"\n"


def _json_line(message: ReceivedMessage) -> bytes:
    document: dict[str, Any] = {"partition": message.partition, "offset": message.offset}
    try:
        document["body"] = message.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = message.body
    for name in ("key", "tag", "headers", "message_id", "born_time", "append_time"):
        value = getattr(message, name)
        if value is not None:
            document[name] = value
    return msgspec.json.encode(document) + b"\n"
