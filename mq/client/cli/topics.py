"""`deltamq topic ...`: create, list, show and delete topics; those for static topics only are in `static_topics`."""

from __future__ import annotations

import sys
from typing import Any

import click

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.cluster import warn_of_missing_jobs
from deltamq.mq.client.cli.console import (
    LONG_PATIENCE,
    PATIENCE,
    one_line,
    print_json,
    print_table,
    service_options,
    watchable,
)
from deltamq.mq.client.cli.schemas import schema_options
from deltamq.mq.client.cli.static_topics import check, print_static_topic, remap, repair, static_line
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.limits import COMMIT_WINDOW_MS_MAX
from deltamq.mq.wire.schemas import SchemaPut
from deltamq.mq.wire.topics import TopicInfo


@click.group()
def topic() -> None:
    """Create, list, show and delete topics; move, check and repair the logical queues of static ones."""


for command in (remap, check, repair):
    topic.add_command(command)


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), help="Number of partitions; can only grow.")
@click.option(
    "--route", "routes", multiple=True, help="A partition, NAME@BROKER, given by hand; repeat it for each, in order."
)
@click.option("--static", is_flag=True, help="A static topic: logical queues that stay when brokers come and go.")
@click.option("--queues", type=click.IntRange(1), help="With --static: number of logical queues; can only grow.")
@click.option("--broker", "brokers", multiple=True, help="With --static: a broker for new queues; may be repeated.")
@click.option("--global", "is_global", is_flag=True, help="With --static: over several clusters, named by --cluster.")
@click.option("--cluster", "clusters", multiple=True, help="With --global: a cluster for queues; may be repeated.")
@click.option(
    "--order-strategy", type=click.Choice(["best_tried", "strict"]), help="What a failed send does to later ones."
)
@click.option("--retention-ms", type=click.IntRange(1), help="How long messages are kept, in ms.")
@click.option("--retention-bytes", type=click.IntRange(-1), help="Bytes that each partition keeps; -1 for no limit.")
@click.option("--message-type", help="A name for the kind of messages.")
@click.option("--flush", type=click.Choice(["sync", "async"]), help="Whether a send's answer waits for fsync.")
@click.option(
    "--commit-window-ms",
    type=click.IntRange(0, COMMIT_WINDOW_MS_MAX),
    help="How long a message waits for others that share its commit, in ms; 0: it is committed at once.",
)
@click.option(
    "--partitioner",
    type=click.Choice(["lp", "kafka"]),
    help="For a new topic: the hash that maps keys to partitions, Spark's (lp) or the one of Kafka's clients (kafka).",
)
@schema_options
@service_options
def create(
    name: str,
    partitions: int | None,
    routes: tuple[str, ...],
    static: bool,
    queues: int | None,
    brokers: tuple[str, ...],
    is_global: bool,
    clusters: tuple[str, ...],
    order_strategy: str | None,
    retention_ms: int | None,
    retention_bytes: int | None,
    message_type: str | None,
    flush: str | None,
    commit_window_ms: int | None,
    partitioner: str | None,
    schema: SchemaPut | None,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Create topic NAME, or change it to these settings.

    A static topic keeps its settings unless its number of queues is named, too.
    """
    if static != (queues is not None):
        raise click.UsageError("a static topic needs its number of queues: --static --queues N")
    if brokers and not static:
        raise click.UsageError("--broker goes with --static: a plain topic spreads its partitions itself")
    if is_global != bool(clusters) or (is_global and (brokers or not static)):
        raise click.UsageError("a global topic names its clusters: --static --queues N --global --cluster C")
    if routes and (static or partitions is not None):
        raise click.UsageError("--route gives all partitions: it goes neither with --partitions nor with --static")
    if static and partitions is not None:
        raise click.UsageError("a static topic has logical queues: --queues in place of --partitions")
    settings: dict[str, Any] = {
        "schema": schema,
        "order_strategy": order_strategy,
        "retention_ms": retention_ms,
        "retention_bytes": retention_bytes,
        "message_type": message_type,
        "flush": flush,
        "commit_window_ms": commit_window_ms,
        "partitioner": partitioner,
    }
    with Admin(url, patience=LONG_PATIENCE if static else PATIENCE, **access) as admin:
        if queues is None:
            info, created = admin.put_topic(name, partitions=partitions, routes=routes or None, **settings)
        else:
            info, created = admin.put_static_topic(
                name, queues, brokers=brokers or None, clusters=clusters or None, **settings
            )
    if as_json:
        print_json({"created": created, "topic": info})
        return
    has = static_line(info) if info.static else ", ".join(p.partition for p in info.partitions)
    click.echo(f"{'created' if created else 'have'} {info.topic}: {has}")


@topic.command("list")
@service_options
def list_topics(url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the names of all topics."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        names = admin.list_topics()
    if as_json:
        print_json({"topics": names})
        return
    for name in names:
        click.echo(name)


@topic.command()
@click.argument("name")
@service_options
@watchable
def show(name: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the settings, route and partitions of topic NAME; for a static topic, also its logical queues."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.get_topic(name)
    if as_json:
        print_json(info)
    else:
        _print_topic(info)
        warn_of_missing_jobs(url, access)


@topic.command()
@click.argument("name")
@click.option("--retention-ms", type=click.IntRange(1), help="What it would take if messages were kept so long.")
@click.option("--retention-bytes", type=click.IntRange(-1), help="The same for so many bytes; -1 for no limit.")
@service_options
@watchable
def retention(
    name: str,
    retention_ms: int | None,
    retention_bytes: int | None,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print what retention takes next of each partition of topic NAME, when, why, and who holds messages back."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.retention(name, retention_ms=retention_ms, retention_bytes=retention_bytes)
    if as_json:
        print_json(info)
        return
    rows = [
        (
            one.partition,
            one.messages,
            one.bytes,
            one.due_messages,
            "-" if one.next is None else one.next.messages,
            "-" if one.next is None else f"{one.next.time.isoformat(timespec='seconds')} by {one.next.why}",
            ", ".join(one.held_by) or "-",
        )
        for one in info.partitions
    ]
    numbers = ("messages", "bytes", "due now", "then")
    print_table(("partition", *numbers, "at the earliest", "held back by"), rows, right=numbers)


@topic.command()
@click.argument("name", required=False)
@service_options
@watchable
def exports(name: str | None, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the typed tables to which topics, or topic NAME, are exported, and how far each export is."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        found = admin.exports(name)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            export.name,
            export.topic,
            export.to,
            export.rows,
            export.quarantined,
            "-" if export.behind is None else export.behind,
            "-" if export.last_run_time is None else export.last_run_time.isoformat(timespec="seconds"),
            "" if export.failure is None else export.failure.detail,
        )
        for export in found
    ]
    columns = ("export", "topic", "table", "rows", "quarantined", "behind", "last run", "failure")
    print_table(columns, rows, right=("rows", "quarantined", "behind"))


def _print_topic(info: TopicInfo) -> None:
    limit = "" if info.retention_bytes < 0 else f" or {info.retention_bytes:,} bytes"
    window = "" if info.commit_window_ms is None else f"commit window {info.commit_window_ms:,} ms, "
    queues = f"{len(info.queues)} logical queues in " if info.static else ""
    click.echo(
        f"{info.topic}: {info.messages:,} messages, {queues}{len(info.partitions)} partitions, {info.order_strategy}, "
        f"kept {info.retention_ms:,} ms{limit}, {window}partitioner {info.partitioner}, "
        f"routes epoch {info.routes_epoch}"
    )
    schema = info.schema
    if schema is not None:
        misfits = sum(one.quarantined or 0 for one in info.partitions)
        click.echo(
            f"schema {schema.format}, subject {one_line(schema.subject)} version {schema.version}, wire {schema.wire}, "
            f"on invalid: {schema.on_invalid}, {misfits:,} messages did not fit"
        )
    if info.static:
        print_static_topic(info)
        return
    rows = [
        (
            p.partition,
            " ".join(f"[{low},{high})" for low, high in p.logical_partitions) or "-",
            *("-" if count is None else count for count in (p.min_offset, p.max_offset, p.messages, p.bytes, p.files)),
            p.state,
            "-" if p.last_append_time is None else p.last_append_time.isoformat(timespec="milliseconds"),
            p.location,
        )
        for p in info.partitions
    ]
    columns = ("partition", "LPs", "min", "max", "messages", "bytes", "files", "state", "last append", "location")
    print_table(columns, rows, right=("min", "max", "messages", "bytes", "files"))


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_options
def delete(name: str, yes: bool, url: str, access: ClientAccess, as_json: bool) -> None:
    """Remove topic NAME with its routes and data."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"remove topic {name} and all its messages?", abort=True, err=True)
    with Admin(url, patience=PATIENCE, **access) as admin:
        admin.delete_topic(name)
    if as_json:
        print_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")


@click.command()
@click.argument("name", metavar="TOPIC|status")
@click.argument("erasure", required=False, metavar="[ID]")
@click.option("--message-key", "keys", multiple=True, help="A key, as it was sent; may be repeated.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_options
def erase(
    name: str, erasure: str | None, keys: tuple[str, ...], yes: bool, url: str, access: ClientAccess, as_json: bool
) -> None:
    """Erase what messages of TOPIC with a --message-key say, in all copies; `erase status ID` shows how far that is.

    The messages keep their offsets, and lose key, headers, body and fields. The job `erase` does it.
    """
    if (name == "status" and erasure is not None) is bool(keys) or (erasure is not None and keys):
        raise click.UsageError("give a topic and one --message-key or more, or `status` and the id of a request")
    with Admin(url, patience=PATIENCE, **access) as admin:
        if erasure is None:
            if not yes and sys.stdin.isatty():
                click.confirm(f"erase the messages of {len(keys)} keys in topic {name}?", abort=True, err=True)
            erasure = admin.erase(name, keys)
        info = admin.erasure(erasure)
    if as_json:
        print_json(info)
        return
    copies = "".join(f", {count:,} {kind.replace('_', ' ')}" for kind, count in info.copies.items())
    when = f", old files go at {info.gone_time}" if info.state == "erased" else ""
    click.echo(f"erasure {info.erasure}: {info.state}, {info.rows:,} messages{copies} of {info.keys} keys{when}")
    for export in info.exports:
        if export.failure is not None:
            click.echo(f"export {export.name}: NOT DONE, {export.failure}")
        elif info.state != "waiting":
            gone = "were gone" if info.state == "gone" else "go"
            click.echo(f"export {export.name}: {export.rows:,} rows, old files {gone} at {export.gone_time}")
