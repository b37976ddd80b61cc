"""`deltamq delayed list|cancel`: messages that wait for their deliver time (SPEC LOOK-5, RETRY-4)."""

from __future__ import annotations

import click
import msgspec

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.cluster import warn_of_missing_jobs
from deltamq.mq.client.cli.console import PATIENCE, one_line, print_json, service_options, watchable
from deltamq.mq.client.http.calls import ClientAccess


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
