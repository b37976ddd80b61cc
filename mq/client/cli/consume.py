"""`deltamq consume`: print the messages of a topic, for a group, or without one (then no offset is stored)."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

import click

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.cluster import warn_of_missing_jobs
from deltamq.mq.client.cli.console import PATIENCE, service_options
from deltamq.mq.client.cli.group_consume import (
    GroupOptions,
    consume_for_group,
    consume_in_order,
    json_line,
    text_line,
    write_lines,
)
from deltamq.mq.client.cli.groups import ORDERS, parse_moment, parse_order
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.messages.received import ReceivedMessage
from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.pull.offsets import BroadcastOffsets, Start
from deltamq.mq.errors import NotFound

_POLL_MESSAGES: Final = 5_000
_POLL_MS: Final = 1_000
#: The `--order` of exclusive groups.
EXCLUSIVE: Final = "exclusive"
BROADCAST: Final = "broadcast"


def parse_start(text: str) -> Start:
    """Parse `--from`: an offset, or what `parse_moment` takes."""
    if text.isascii() and text.isdigit():
        return int(text)
    return parse_moment(text, "--from")


@click.command()
@click.argument("topic")
@click.option("--group", help="Consume as a client of this group; printed messages are acknowledged.")
@click.option("--partition", "partitions", multiple=True, help="NAME@BROKER; may be repeated. Default: all.")
@click.option("--from", "start", help="OFFSET, first (default), last, -1h or TIME (RFC 3339); not with --group.")
@click.option("--max", "max_messages", type=click.IntRange(1), help="Stop after this number of messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages; without it, stop at the current end.")
@click.option("--tags", default="*", show_default=True, help="TagA||TagB: only messages with one of these tags.")
@click.option("--filter", help="SQL: only messages that it is true for, such as: region = 'eu' AND amount > 5")
@click.option(
    "--order",
    type=click.Choice([*ORDERS, EXCLUSIVE]),
    help="With --group: in order by partition or by key, or not (none); exclusive: one client for each partition.",
)
@click.option("--typed", is_flag=True, help="Print values, of a topic with a schema, in place of bodies.")
@click.option("--invisible-ms", type=click.IntRange(1), help="With --group: invisible time of popped messages, in ms.")
@click.option("--client-id", help="Name of this client in a broadcast group; by default the name of the machine.")
@service_options
def consume(
    topic: str,
    group: str | None,
    partitions: tuple[str, ...],
    start: str | None,
    max_messages: int | None,
    follow: bool,
    tags: str,
    filter: str | None,
    order: str | None,
    typed: bool,
    invisible_ms: int | None,
    client_id: str | None,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC, one a line: partition:offset, key, tag, body; or JSON with --json.

    With --group, each message is acknowledged once its line is written. SIGTERM ends the command cleanly: messages that
    are not written go back to the group. As a client of an exclusive group it prints each of its partitions in order.
    As a client of a broadcast group it prints all that no client of the same name has printed.
    """
    line = json_line if as_json else text_line
    if group is not None:
        if start is not None or len(partitions) > 1:
            raise click.UsageError("--group begins at the group's offsets: no --from, at most one --partition")
        options = GroupOptions(
            topic=topic,
            partition=partitions[0] if partitions else None,
            max_messages=max_messages,
            follow=follow,
            tags=tags,
            filter=filter,
            typed=typed,
            order=None if order == EXCLUSIVE else parse_order(order),
            invisible_ms=invisible_ms,
        )
        strategy = EXCLUSIVE if order == EXCLUSIVE else _strategy_of(url, group, access)
        if client_id is not None and strategy != BROADCAST:
            raise click.UsageError("--client-id is for broadcast groups")
        if strategy != BROADCAST:
            warn_of_missing_jobs(url, access)
        if strategy == BROADCAST:
            if order is not None or invisible_ms is not None:
                raise click.UsageError("leave out --order and --invisible-ms: clients of a broadcast group fetch")
            offsets = BroadcastOffsets(group, client_id or socket.gethostname())
            named = partitions or None
            with PullConsumer(
                url, topic, partitions=named, offsets=offsets, tags=tags, filter=filter, typed=typed, **access
            ) as consumer:
                for messages in polls(consumer, follow=follow, max_messages=max_messages, beyond=True):
                    write_lines(messages, line)
                    consumer.commit()
        elif strategy == EXCLUSIVE and order in (None, EXCLUSIVE):
            if options.partition is not None or invisible_ms is not None:
                raise click.UsageError("leave out --partition, --invisible-ms: an exclusive group allocates partitions")
            consume_in_order(url, group, options, line, access)
        else:
            consume_for_group(url, group, options, line, access)
        return
    if order is not None or invisible_ms is not None:
        raise click.UsageError("--order and --invisible-ms need --group")
    where = parse_start(start or "first")
    named = partitions or None
    with PullConsumer(
        url, topic, partitions=named, start=where, tags=tags, filter=filter, typed=typed, **access
    ) as consumer:
        for messages in polls(consumer, follow=follow, max_messages=max_messages):
            write_lines(messages, line)


@click.command()
@click.argument("topic")
@click.option("--last", type=click.IntRange(0), default=10, show_default=True, help="Begin so far before each end.")
@click.option("--partition", "partitions", multiple=True, help="NAME@BROKER; may be repeated. Default: all.")
@click.option("--max", "max_messages", type=click.IntRange(1), help="Stop after this number of messages.")
@click.option("--tags", default="*", show_default=True, help="TagA||TagB: only messages with one of these tags.")
@click.option("--filter", help="SQL: only messages that it is true for, such as: region = 'eu' AND amount > 5")
@service_options
def tail(
    topic: str,
    last: int,
    partitions: tuple[str, ...],
    max_messages: int | None,
    tags: str,
    filter: str | None,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print the last messages of TOPIC, and new ones as they come, until Ctrl-C; no group moves.

    Each line is as `consume` prints it. `--last` counts in each partition.
    """
    line, named = json_line if as_json else text_line, partitions or None
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.get_topic(topic)
    with PullConsumer(url, topic, partitions=named, start="last", tags=tags, filter=filter, **access) as consumer:
        lows, ends = info.min_offsets(consumer.partitions()), info.max_offsets(consumer.partitions())
        for partition, end in ends.items():
            consumer.seek(partition, max(lows[partition], end - last))
        for messages in polls(consumer, follow=True, max_messages=max_messages):
            write_lines(messages, line)


def _strategy_of(url: str, group: str, access: ClientAccess) -> str:
    """Return the group's strategy; the first pop makes a missing group, as a shared one."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        try:
            return admin.get_group(group).consume_strategy
        except NotFound:
            return "shared"


class Polled(Protocol):
    """The part of a `PullConsumer` that is used here."""

    def end_offsets(self) -> Mapping[str, int]: ...

    def position(self, partition: str, /) -> int: ...

    def poll(self, max_messages: int, wait_ms: int, /) -> list[ReceivedMessage]: ...


def polls(
    consumer: Polled, *, follow: bool, max_messages: int | None, beyond: bool = False
) -> Iterator[list[ReceivedMessage]]:
    """Yield polled messages up to the current end offsets (with `follow` for ever), and at most `max_messages`.

    With `beyond`, later messages of the same poll are yielded, too: the consumer's positions are past them, so a caller
    that commits needs them.
    """
    ends = {} if follow else consumer.end_offsets()
    left = max_messages
    while follow or any(consumer.position(name) < end for name, end in ends.items()):
        polled = consumer.poll(_POLL_MESSAGES if left is None else min(left, _POLL_MESSAGES), _POLL_MS)
        shown = polled if follow or beyond else [m for m in polled if m.offset < ends.get(m.partition, 0)]
        yield shown
        if left is not None:
            left -= len(shown)
            if left <= 0:
                return
