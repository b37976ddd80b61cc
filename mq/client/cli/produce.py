"""`deltamq produce`: send message objects (the API's JSON, one a line), streamed from a file or stdin.

Each line is sent as soon as it is read; while requests are under way the next lines gather into batches. The first line
that cannot be sent ends the run: lines before it are stored, and the error names its number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import BinaryIO, Final

import click
import msgspec
from msgspec import UNSET, UnsetType

from deltamq.mq.client.cli.console import print_json, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.messages.message import Message, Sent
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.produce.progress_bar import row_bar
from deltamq.mq.client.shells.send_future import SendFuture
from deltamq.mq.errors import DeltaMQError, Refused
from deltamq.mq.limits import REQUEST_BYTES_MAX

#: Futures kept for lines whose outcome is not read yet.
_PENDING_MAX: Final = 50_000
_BAR_EVERY: Final = 1_000


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    body: str | None = None
    body_base64: bytes | None = None
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] | None = None
    partition: str | None = None
    message_id: str | None = None
    born_time: datetime | None = None
    delay_ms: int | None = None
    deliver_time: datetime | None = None
    value: msgspec.Raw | UnsetType = UNSET


_decoder = msgspec.json.Decoder(_Line)


def decode_line(line: bytes) -> Message:
    """Decode the message on one line; raises `Refused`, which names the field."""
    try:
        decoded = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused(f"not a message object: {error}", code="invalid_json", field="line") from error
    if [decoded.body, decoded.body_base64, decoded.value or None].count(None) != 2:
        raise Refused("exactly one of body, body_base64 and value is needed", code="invalid_body", field="body")
    body = decoded.body_base64 if decoded.body is None else decoded.body.encode()
    return Message(
        body or b"",
        decoded.key,
        decoded.tag,
        decoded.headers,
        decoded.partition,
        decoded.message_id,
        decoded.born_time,
        decoded.delay_ms,
        decoded.deliver_time,
        bytes(decoded.value) if decoded.value else None,
    )


class _Range(msgspec.Struct, omit_defaults=True):
    """The messages sent to one partition; `undecided` ones are stored and have no offset yet (SPEC STATIC-10)."""

    first_offset: int | None = None
    last_offset: int | None = None
    count: int = 0
    undecided: int = 0

    def add(self, offset: int) -> None:
        self.count += 1
        if offset < 0:
            self.undecided += 1
            return
        self.first_offset = offset if self.first_offset is None else min(self.first_offset, offset)
        self.last_offset = offset if self.last_offset is None else max(self.last_offset, offset)

    def line(self) -> str:
        offsets = "" if self.first_offset is None else f" in offsets {self.first_offset}..{self.last_offset}"
        undecided = f" ({self.undecided:,} with offsets that are not decided yet)" if self.undecided else ""
        return f"{self.count:,}{offsets}{undecided}"


class _Tally:
    """The outcomes of the lines sent so far."""

    def __init__(self) -> None:
        self.sent = 0
        self.duplicates = 0
        self.ranges: dict[str, _Range] = {}
        self._pending: deque[tuple[int, SendFuture[Sent]]] = deque()

    def add(self, number: int, future: SendFuture[Sent]) -> None:
        """Note a line under way; counts finished ones, and waits for the oldest if too many are unfinished."""
        self._pending.append((number, future))
        while self._pending and (self._pending[0][1].done() or len(self._pending) > _PENDING_MAX):
            self._wait_first()

    def wait(self) -> DeltaMQError | None:
        """Wait for all lines under way; returns the error of the first that failed, if one did."""
        first: DeltaMQError | None = None
        while self._pending:
            try:
                self._wait_first()
            except DeltaMQError as error:
                first = first or error
        return first

    def _wait_first(self) -> None:
        number, future = self._pending.popleft()
        try:
            sent = future.result()
        except DeltaMQError as error:
            raise _at_line(error, number) from error
        self.sent += 1
        self.duplicates += sent.duplicate
        self.ranges.setdefault(sent.partition, _Range()).add(sent.offset)


def _at_line(error: DeltaMQError, number: int) -> DeltaMQError:
    if "line" not in error.extra:
        error.extra["line"] = number
        error.detail = f"line {number}: {error.detail}"
    return error


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers; an endless line is refused before it fills the memory."""
    number = 0
    while line := stream.readline(REQUEST_BYTES_MAX + 1):
        number += 1
        if len(line) > REQUEST_BYTES_MAX:
            raise _at_line(Refused(f"longer than {REQUEST_BYTES_MAX:,} bytes", code="line_too_long"), number)
        if line.strip():
            yield number, line


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--timeout-s", type=click.FloatRange(0.1), default=30.0, show_default=True, help="For each message.")
@click.option("--value", "are_values", is_flag=True, help="Each line is a value: the fields of the topic's schema.")
@service_options
def produce(
    topic: str,
    file: BinaryIO,
    timeout_s: float,
    are_values: bool,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Send the messages of FILE (or stdin) to TOPIC.

    One JSON object a line: body (text), body_base64 or (with a schema) value, and optionally key, tag, headers,
    partition, message_id, born_time, and delay_ms or deliver_time (RFC 3339). Exits non-zero at the first line that
    cannot be sent, and says which.
    """
    tally = _Tally()
    try:
        with Producer(url, timeout_s=timeout_s, **access) as producer:
            _send_all(producer, topic, file, tally, _value_line if are_values else decode_line)
    except DeltaMQError as error:
        error.extra["sent"] = tally.sent
        error.detail = f"{error.detail} [{tally.sent:,} messages were stored]"
        raise
    _report(topic, tally, as_json=as_json)


def _value_line(line: bytes) -> Message:
    try:
        return Message(value=bytes(msgspec.json.decode(line, type=msgspec.Raw)))
    except msgspec.MsgspecError as error:
        raise Refused(f"not JSON: {error}", code="invalid_json", field="line") from error


def _send_all(
    producer: Producer, topic: str, file: BinaryIO, tally: _Tally, decode: Callable[[bytes], Message] = decode_line
) -> None:
    failure: DeltaMQError | None = None
    try:
        with row_bar(f"sending to {topic}", None) as advance:
            for number, line in _lines(file):
                try:
                    future = producer.send_soon(topic, decode(line))
                except DeltaMQError as error:
                    raise _at_line(error, number) from error
                tally.add(number, future)
                if number % _BAR_EVERY == 0:
                    advance(tally.sent)
    except DeltaMQError as error:
        failure = error
    finally:
        # Also after an error: requests under way end first, so that the reported count is true.
        waited = tally.wait()
    # Lines under way come before one that could not be read or sent, and after one that has failed.
    errors = [error for error in (failure, waited) if error is not None]
    if errors:
        raise min(errors, key=_line_of)


def _line_of(error: DeltaMQError) -> int:
    number = error.extra.get("line")
    return number if isinstance(number, int) else 0


def _report(topic: str, tally: _Tally, *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": topic, "sent": tally.sent, "partitions": dict(sorted(tally.ranges.items()))})
        return
    click.echo(f"sent {tally.sent:,} messages to {topic}")
    for name, sent in sorted(tally.ranges.items()):
        click.echo(f"  {name}: {sent.line()}")
