"""`deltamq topic ...`: create, list, show and delete topics."""

from __future__ import annotations

import sys

import click

from mq.client.admin import Admin, TopicInfo
from mq.client.cli.console import PATIENCE, print_json, print_table, service_options

__all__ = ["topic"]


@click.group()
def topic() -> None:
    """Create, list, show and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), help="Number of partitions; can only grow.")
@click.option(
    "--order-strategy", type=click.Choice(["best_tried", "strict"]), help="What a failed send does to later ones."
)
@click.option("--retention-ms", type=click.IntRange(1), help="How long messages are kept, in ms.")
@click.option("--message-type", help="A name for the kind of messages.")
@click.option("--flush", type=click.Choice(["sync", "async"]), help="Whether a send's answer waits for fsync.")
@service_options
def create(
    name: str,
    partitions: int | None,
    order_strategy: str | None,
    retention_ms: int | None,
    message_type: str | None,
    flush: str | None,
    url: str,
    token: str | None,
    as_json: bool,
) -> None:
    """Create topic NAME, or change it to these settings."""
    with Admin(url, token=token, patience=PATIENCE) as admin:
        info, created = admin.put_topic(
            name,
            partitions=partitions,
            order_strategy=order_strategy,
            retention_ms=retention_ms,
            message_type=message_type,
            flush=flush,
        )
    if as_json:
        print_json({"created": created, "topic": info})
        return
    names = ", ".join(p.partition for p in info.partitions)
    click.echo(f"{'created' if created else 'have'} {info.topic}: {names}")


@topic.command("list")
@service_options
def list_topics(url: str, token: str | None, as_json: bool) -> None:
    """Print the names of all topics."""
    with Admin(url, token=token, patience=PATIENCE) as admin:
        names = admin.list_topics()
    if as_json:
        print_json({"topics": names})
        return
    for name in names:
        click.echo(name)


@topic.command()
@click.argument("name")
@service_options
def show(name: str, url: str, token: str | None, as_json: bool) -> None:
    """Print the settings, route and partitions of topic NAME."""
    with Admin(url, token=token, patience=PATIENCE) as admin:
        info = admin.get_topic(name)
    if as_json:
        print_json(info)
    else:
        _print_topic(info)


def _print_topic(info: TopicInfo) -> None:
    click.echo(
        f"{info.topic}: {info.messages:,} messages, {len(info.partitions)} partitions, {info.order_strategy}, "
        f"kept {info.retention_ms:,} ms, routes epoch {info.routes_epoch}"
    )
    rows = [
        (
            p.partition,
            " ".join(f"[{low},{high})" for low, high in p.logical_partitions),
            p.min_offset,
            p.max_offset,
            p.messages,
            p.bytes,
            p.files,
            "-" if p.last_append_time is None else p.last_append_time.isoformat(timespec="milliseconds"),
            p.location,
        )
        for p in info.partitions
    ]
    columns = ("partition", "LPs", "min", "max", "messages", "bytes", "files", "last append", "location")
    print_table(columns, rows, right=("min", "max", "messages", "bytes", "files"))


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_options
def delete(name: str, yes: bool, url: str, token: str | None, as_json: bool) -> None:
    """Remove topic NAME with its routes and data."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"remove topic {name} and all its messages?", abort=True, err=True)
    with Admin(url, token=token, patience=PATIENCE) as admin:
        admin.delete_topic(name)
    if as_json:
        print_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")
