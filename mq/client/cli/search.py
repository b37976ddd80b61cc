"""`deltamq search`: messages by what is in them; `deltamq deliveries`: what groups did with one (SPEC LOOK).

`deltamq latest`: the newest value of a key (SPEC TYPE-47).
`deltamq delayed list|cancel`: messages that wait for their deliver time (SPEC LOOK-5, RETRY-4).
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Final

import click
import msgspec

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.cluster import warn_of_missing_jobs
from deltamq.mq.client.cli.console import PATIENCE, one_line, print_json, print_table, service_options, watchable
from deltamq.mq.client.cli.groups import parse_moment
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.wire.stored import FoundMessage

_TIME_HELP: Final = "-1h (s, m, h or d ago) or TIME (RFC 3339)"


@click.command()
@click.argument("topic")
@click.option("--message-key", help="Only messages with this key.")
@click.option("--id", "message_id", help="Only the messages with this id.")
@click.option("--tag", help="Only messages with this tag.")
@click.option("--header", help="Only messages with this header: name:value, or name.")
@click.option("--text", help="Only messages whose body has this text.")
@click.option("--from", "since", help=f"Only messages stored then or later: {_TIME_HELP}.")
@click.option("--to", "until", help=f"Only messages stored before: {_TIME_HELP}.")
@click.option("--partition", help="Only this partition, NAME@BROKER, or logical queue.")
@click.option("--max", "limit", type=click.IntRange(1), default=100, show_default=True, help="How many at most.")
@service_options
def search(
    topic: str,
    message_key: str | None,
    message_id: str | None,
    tag: str | None,
    header: str | None,
    text: str | None,
    since: str | None,
    until: str | None,
    partition: str | None,
    limit: int,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print messages of TOPIC that have all that is asked for; on a terminal also how far the search has come.

    With --json each line is one message as the service shows it. Ctrl-C ends the search; nothing goes on behind it.
    """
    left, cursor = limit, None
    shows_progress = sys.stderr.isatty()
    messages = size = 0
    with Admin(url, patience=PATIENCE, **access) as admin:
        while left > 0:
            page = admin.search_page(
                topic,
                key=message_key,
                message_id=message_id,
                tag=tag,
                header=header,
                text=text,
                since=_moment(since, "--from"),
                until=_moment(until, "--to"),
                partition=partition,
                limit=min(left, 1_000),
                cursor=cursor,
            )
            for message in page.messages:
                click.echo(msgspec.json.encode(message).decode() if as_json else _line(message))
            left, cursor = left - len(page.messages), page.cursor
            messages, size = messages + page.looked_at.messages, size + page.looked_at.bytes
            if shows_progress:
                through = page.looked_at.through_time
                at = "" if through is None else f", through {through.isoformat(timespec='seconds')}"
                click.echo(f"looked at {messages:,} messages, {size / 2**20:,.1f} MiB{at}", err=True)
            if cursor is None:
                return


def _moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    found = parse_moment(text, option)
    if isinstance(found, str):
        raise click.BadParameter("give a time, or how long ago", param_hint=option)
    return found


def _line(message: FoundMessage) -> str:
    body = message.payload.decode(errors="replace") if message.body is None else message.body
    parts = (message.partition, message.offset, message.append_time, message.key or "-", message.tag or "-", body)
    return "\t".join(one_line(str(part)) for part in parts)


@click.command()
@click.argument("topic")
@click.argument("message_key", metavar="KEY")
@service_options
def latest(topic: str, message_key: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the newest value of KEY in TOPIC, which has a schema; exits with 1 if there is none."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        newest = admin.latest(topic, message_key)
    if newest is None:
        click.echo(f"topic {topic} has no value of this key", err=True)
        sys.exit(1)
    click.echo(msgspec.json.encode(newest).decode() if as_json else bytes(newest.value).decode())


@click.command()
@click.argument("topic")
@click.argument("partition")
@click.argument("offset", type=click.IntRange(0))
@service_options
def deliveries(topic: str, partition: str, offset: int, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print what each group did with the message at OFFSET of PARTITION: deliveries, retries, dead letters."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        answer = admin.deliveries(topic, partition, offset)
    if as_json:
        print_json(answer)
        return
    rows = [
        (
            one.group,
            one.attempt,
            one.state,
            "-" if one.time is None else one.time.isoformat(timespec="seconds"),
            one.client_id or "-",
            "-" if one.due_time is None else one.due_time.isoformat(timespec="seconds"),
            one.moved_to or "-",
            one_line(one.reason or "-"),
        )
        for one in answer.deliveries
    ]
    columns = ("group", "attempt", "state", "since", "client", "again after", "moved to", "reason")
    print_table(columns, rows, right=("attempt",))


@click.group()
def delayed() -> None:
    """List the messages that wait for their deliver time; cancel one."""


@delayed.command("list")
@click.argument("topic")
@click.option("--max", "limit", type=click.IntRange(1), default=100, show_default=True, help="How many at most.")
@service_options
@watchable
def list_delayed(topic: str, limit: int, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the messages that wait for TOPIC, the next due first: deliver time, target, key, id, body."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        left, cursor = limit, None
        while left > 0:
            page = admin.delayed_page(topic, limit=min(left, 1_000), cursor=cursor)
            for message in page.messages:
                if as_json:
                    click.echo(msgspec.json.encode(message).decode())
                else:
                    body = message.payload.decode(errors="replace")
                    parts = (message.deliver_time, message.partition, message.key or "-", message.message_id, body)
                    click.echo("\t".join(one_line(str(part)) for part in parts))
            left, cursor = left - len(page.messages), page.cursor
            if cursor is None:
                break
    if not as_json:
        warn_of_missing_jobs(url, access)


@delayed.command()
@click.argument("topic")
@click.argument("message_id")
@service_options
def cancel(topic: str, message_id: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Cancel the messages with MESSAGE_ID that wait for TOPIC, before they are due."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        admin.cancel_message(topic, message_id)
    print_json({"cancelled": message_id}) if as_json else click.echo(f"cancelled {one_line(message_id)}")
