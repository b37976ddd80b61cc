"""Print a topic for a group: pop, write the lines, acknowledge (at least once: a line may be printed twice).

    pop ──► lines written and flushed ──► acknowledged by the next pop ──► pop ...
     │                                            └── at the end by a call of its own
     └── SIGTERM, Ctrl-C, a closed pipe: messages that are not written go back to the group

A pop gives messages of the brokers that the asked process serves, so the processes of the topic are asked in turn.
They are looked up again every few seconds, since an expansion may put partitions on brokers of others.

For an exclusive group a topic is printed in order: a message is done when its line is written. After SIGTERM, Ctrl-C or
a closed pipe, the written messages are committed and the partitions go to other clients.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from types import FrameType
from typing import Any, Final, Protocol

import click
import msgspec

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.topic_view import fetch_view
from deltamq.mq.client.cli.console import PATIENCE, one_line
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.http.retries import Attempts, is_worth_retrying
from deltamq.mq.client.messages.received import OrderedMessage, PopBatch, PoppedMessage, ReceivedMessage
from deltamq.mq.client.messages.values import named
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.client.pop.client import PopAsk, PopClient, batch_of
from deltamq.mq.client.pop.connection import BlockingPopConnection
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.group_settings import Ordering
from deltamq.mq.order.orderly import Verdict
from deltamq.mq.wire.pop import FailedHandle

Line = Callable[[ReceivedMessage], bytes]


def write_lines(messages: Sequence[ReceivedMessage], line: Line) -> None:
    """Write a line for each message, and flush."""
    if messages:
        sys.stdout.buffer.write(b"".join(map(line, messages)))
        sys.stdout.buffer.flush()


def text_line(message: ReceivedMessage) -> bytes:
    """Return a line for people: partition and offset, key, tag, body; a terminal obeys nothing in it."""
    body = message.body.decode("utf-8", "backslashreplace")
    if message.value is not None:
        body = msgspec.json.encode(named(message.value)).decode()
    cells = (f"{message.partition}:{message.offset}", message.key or "", message.tag or "", body)
    return "\t".join(map(one_line, cells)).encode() + b"\n"


def json_line(message: ReceivedMessage) -> bytes:
    """Return a line for machines: a JSON object."""
    document: dict[str, Any] = {"partition": message.partition, "offset": message.offset}
    if message.value is not None:
        document["value"] = named(message.value)
        if message.rescued is not None:
            document["rescued"] = msgspec.Raw(message.rescued.encode())
    else:
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


#: Few enough for a slow reader of the output to take them all within their invisible time.
_POP_MESSAGES: Final = 256
#: Milliseconds that a pop with --follow waits at a single process; then the processes are looked up again.
_WAIT_MS: Final = 5_000
#: Milliseconds that a pop without --follow waits for the first message.
_LOOK_MS: Final = 200
#: Milliseconds that a pop with --follow waits at each of several processes.
_TURN_MS: Final = 500
#: Seconds after which the processes of the topic are looked up again, while messages come, too.
_HOSTS_AGE_S: Final = 5.0


class GroupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run: what to print."""

    topic: str
    partition: str | None
    max_messages: int | None
    follow: bool
    tags: str
    filter: str | None
    #: None: the group's own setting.
    order: Ordering | None
    invisible_ms: int | None
    typed: bool = False


def consume_for_group(
    url: str, group: str, options: GroupOptions, line: Line, access: ClientAccess, hosts_age_s: float = _HOSTS_AGE_S
) -> None:
    """Print messages until there are no more, or until SIGTERM."""
    with PopClient(url, group, client_id="deltamq-consume", patience=PATIENCE, **access) as client:
        printing = _Printing(client, options, line, hosts_age_s)
        with stopped_by_sigterm(printing):
            printing.run()


class Stoppable(Protocol):
    """Something that a signal handler can stop."""

    def stop(self) -> None: ...


@contextmanager
def stopped_by_sigterm(printing: Stoppable) -> Iterator[None]:
    """Let SIGTERM stop `printing` cleanly within the `with` block."""

    def stop(number: int, frame: FrameType | None) -> None:
        printing.stop()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Printing:
    def __init__(self, client: PopClient, options: GroupOptions, line: Line, hosts_age_s: float) -> None:
        self._client = client
        self._options = options
        self._line = line
        #: The connections to the processes that were asked; None stands for any process.
        self._connections: dict[Endpoint | None, BlockingPopConnection] = {}
        #: The processes to ask in turn; empty before they are known, and after a turn that brought nothing.
        self._hosts: list[Endpoint | None] = []
        self._hosts_age_s = hosts_age_s
        self._looked_up_at = float("-inf")
        self._stopping = Event()
        #: Handles of messages that are written but not acknowledged, and of messages not written yet.
        self._written: list[str] = []
        self._held: list[str] = []

    def stop(self) -> None:
        """End after the messages that are being written; safe in a signal handler."""
        self._stopping.set()
        for connection in list(self._connections.values()):
            connection.cancel()

    def run(self) -> None:
        left = self._options.max_messages
        try:
            while not self._stopping.is_set() and (left is None or left > 0):
                count = self._turn(left)
                if not (count or self._options.follow):
                    break
                left = None if left is None else left - count
        finally:
            self._end()

    def _turn(self, left: int | None) -> int:
        if not self._hosts or time.monotonic() >= self._looked_up_at + self._hosts_age_s:
            self._hosts = self._topic_hosts()
            self._looked_up_at = time.monotonic()
            self._close_others()
        count = 0
        for host in self._hosts:
            batch = None if left is not None and count >= left else self._pop(host, left and left - count)
            if batch is None:
                return count
            self._print(batch)
            count += len(batch.messages)
        if not count and len(self._hosts) > 1:
            # The topic, or a logical queue of it, may be at other processes by now.
            self._hosts = []
        return count

    def _topic_hosts(self) -> list[Endpoint | None]:
        """Return the processes of the topic's brokers, None for any; if the look-up fails, the earlier ones."""
        hosts = self._client.hosts
        if self._options.partition is not None:
            return [None]
        if run_now(hosts.look()):
            if not hosts.are_several:
                return [None]
            # The topic may not exist yet: a pop at any process reports that.
            with suppress(DeltaMQError):
                view = run_now(fetch_view(hosts, self._options.topic, self._client.patience.request_timeout_s))
                return [*hosts.of(view.stored_at)]
        return self._hosts or [None]

    def _close_others(self) -> None:
        for host in [host for host in self._connections if host is not None and host not in self._hosts]:
            run_now(self._connections.pop(host).close())

    def _connection(self, host: Endpoint | None) -> BlockingPopConnection:
        if host not in self._connections:
            timeout_s = self._client.patience.request_timeout_s
            self._connections[host] = BlockingPopConnection(self._client.hosts, timeout_s, host)
        return self._connections[host]

    def _ask(self, left: int | None) -> PopAsk:
        options = self._options
        wait_ms = _LOOK_MS
        if options.follow:
            wait_ms = _WAIT_MS if len(self._hosts) == 1 else _TURN_MS
        return self._client.ask(
            options.topic,
            _POP_MESSAGES if left is None else min(left, _POP_MESSAGES),
            invisible_ms=options.invisible_ms,
            wait_ms=wait_ms,
            tags=options.tags,
            filter=options.filter,
            typed=options.typed,
            partition=options.partition,
            order=options.order,
            ack=self._written,
        )

    def _pop(self, host: Endpoint | None, left: int | None) -> PopBatch | None:
        """Pop once at a process; returns None if the run was stopped."""
        ask, connection = self._ask(left), self._connection(host)
        deadline = time.monotonic() + self._client.patience.timeout_s + ask.wait_ms / 1000
        attempts = Attempts(
            self._client.patience, shell=self._client.shell, deadline=deadline, retries=self._client.patience.retries
        )
        while not self._stopping.is_set():
            try:
                answer = run_now(connection.pop(ask))
                batch = batch_of(ask, answer.headers, answer.body)
            except DeltaMQError as error:
                if self._stopping.is_set():
                    break
                if not is_worth_retrying(error) or not run_now(attempts.may_go_on(error)):
                    raise
                # Another process may serve the brokers of this one by now.
                connection, self._hosts = self._connection(None), []
                continue
            self._warn_late(batch.failed_acks)
            self._written = []
            self._held = [message.handle for message in batch.messages]
            return batch
        return None

    def _print(self, batch: PopBatch) -> None:
        write_lines(batch.messages, self._line)
        self._written, self._held = self._held, []

    def _end(self) -> None:
        for connection in self._connections.values():
            run_now(connection.close())
        # An error here must not hide the one that ended the run; unanswered messages are delivered again.
        with suppress(DeltaMQError):
            if self._written:
                self._warn_late(self._client.ack(self._written))
            for handle in self._held:
                self._client.change_invisible(handle, 0)

    def _warn_late(self, failed: Sequence[FailedHandle]) -> None:
        if failed:
            click.echo(
                f"warning: {len(failed)} messages were printed after their invisible time had ended; they are "
                "delivered again",
                err=True,
            )


_LOOK_S: Final = 0.05
#: Without --follow: seconds after its partitions were read to the end until it stops ...
_SETTLED_S: Final = 0.5
#: ... and seconds that it waits for partitions that other clients have.
_ALLOCATED_S: Final = 10.0


def consume_in_order(url: str, group: str, options: GroupOptions, line: Line, access: ClientAccess) -> None:
    """Print messages until there are no more, or until SIGTERM."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        ends = admin.get_topic(options.topic).max_offsets()
    printing = _OrderedPrinting(url, group, options, line, ends, access)
    with stopped_by_sigterm(printing):
        printing.run()


class _OrderedPrinting:
    def __init__(
        self, url: str, group: str, options: GroupOptions, line: Line, ends: Mapping[str, int], access: ClientAccess
    ) -> None:
        self._options = options
        self._line = line
        self._ends = ends
        self._left = options.max_messages
        self._stopping = threading.Event()
        self._failure: OSError | None = None
        #: Lines of a partition and of retried messages must not mix; two partitions cannot, with a concurrency of 1.
        self._writing = threading.Lock()
        self._consumer = OrderlyConsumer(
            url,
            group,
            options.topic,
            self._print,
            concurrency=1,
            tags=options.tags,
            filter=options.filter,
            typed=options.typed,
            client_id=None,
            **access,
        )

    def stop(self) -> None:
        """End after the message that is being written; safe in a signal handler."""
        self._stopping.set()
        self._consumer.stop()

    def run(self) -> None:
        watch = threading.Thread(target=self._stop_at_end, daemon=True)
        if not self._options.follow:
            watch.start()
        self._consumer.run()
        self._stopping.set()
        if self._failure is not None:
            raise self._failure

    def _print(self, message: OrderedMessage) -> Verdict:
        with self._writing:
            return self._write(message)

    def _write(self, message: OrderedMessage) -> Verdict:
        if self._stopping.is_set():
            return Verdict.SUSPEND
        try:
            write_lines([message], self._line)
        except OSError as error:
            self._failure = error
            self.stop()
            return Verdict.SUSPEND
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.stop()
        return Verdict.SUCCESS

    def _stop_at_end(self) -> None:
        """Stop when this client's partitions are read to the end offsets that they had at the start."""
        settled: float | None = None
        give_up = time.monotonic() + _ALLOCATED_S
        while not self._stopping.wait(_LOOK_S):
            now = time.monotonic()
            positions = self._consumer.positions()
            if not positions or any(offset < self._ends.get(name, 0) for (_, name), offset in positions.items()):
                settled = None
            elif settled is None:
                settled = now
            if (settled is not None and now - settled >= _SETTLED_S) or (not positions and now >= give_up):
                self.stop()
