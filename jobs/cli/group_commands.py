"""`deltamq jobs replay` and `reset`: a group's dead letters and offsets, without a service (SPEC SPARK-10)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal

import click

from deltamq.jobs.cli.options import conf_of, errors_shown, moment_of, session, with_warehouse
from deltamq.jobs.run.last_run import utc_now
from deltamq.jobs.run.registry import with_spark_engine
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Refused
from deltamq.tables.config import Config

if TYPE_CHECKING:
    from deltamq.jobs.sink.open_sink import SinkSettings


def _settings(conf: Config) -> SinkSettings:
    from deltamq.jobs.sink.open_sink import SinkSettings

    storage(conf.warehouse.uri)  # raises if the warehouse does not exist, so that it is not created
    return SinkSettings.of(conf, conf.warehouse.uri)


@click.command(name="replay")
@click.option("--group", metavar="GROUP", required=True, help="The group whose dead letters are sent back.")
@click.option(
    "--to", type=click.Choice(["origin", "retry"]), default="origin", help="To all groups, or only to this group."
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only dead letters from this topic.")
@click.option("--id", "message_ids", multiple=True, metavar="MESSAGE_ID", help="Only these messages.")
@click.option("--since", metavar="TIME", help="Only dead letters from this time on (RFC 3339).")
@click.option("--until", metavar="TIME", help="Only dead letters before this time.")
@click.option("--apply", is_flag=True, help="Send them; without it they are only counted.")
@with_warehouse
def replay_command(
    group: str,
    to: str,
    topics: tuple[str, ...],
    message_ids: tuple[str, ...],
    since: str | None,
    until: str | None,
    apply: bool,
    warehouse: str | None,
    profile: str | None,
) -> None:
    """Send a group's dead letters back. Without --apply, only count them.

    If repeated, nothing is stored twice. With jobs.engine = "spark" the work is done in tasks.
    """
    from deltamq.jobs.export.replay import Chosen, replay_dead_letters

    with errors_shown(), contextlib.ExitStack() as ending:
        conf = conf_of(profile, warehouse)
        chosen: Chosen = Chosen(
            topics=frozenset(topics) or None,
            message_ids=frozenset(message_ids) or None,
            since=None if since is None else moment_of(since, "--since"),
            until=None if until is None else moment_of(until, "--until"),
        )
        spark = ending.enter_context(session(conf)) if with_spark_engine(conf) else None
        target: Literal["origin", "retry"] = "origin" if to == "origin" else "retry"
        done = replay_dead_letters(_settings(conf), group, chosen, to=target, dry_run=not apply, spark=spark)
        if not apply:
            click.echo(f"{done.matched - done.duplicates} dead letters would be sent back; add --apply to do it")
            return
        click.echo(f"{done.replayed} dead letters sent back, {done.duplicates} had been sent back before")
        for code, count in done.failed.items():
            click.echo(f"{count} not sent back: {code}", err=True)
        if done.failed:
            raise SystemExit(1)


@click.command(name="reset")
@click.option("--group", metavar="GROUP", required=True, help="The group whose offsets are reset.")
@click.option("--topic", metavar="TOPIC", required=True, help="The topic in which offsets are reset.")
@click.option("--to", metavar="WHERE", help="earliest, latest, -24h, or an RFC 3339 time.")
@click.option("--offset", "offsets", multiple=True, metavar="PARTITION=OFFSET", help="Instead: one partition's offset.")
@click.option("--retries", type=click.Choice(["keep", "drop"]), default="keep", help="Messages waiting for redelivery.")
@click.option("--apply", is_flag=True, help="Do it; without it the offsets are only shown.")
@with_warehouse
def reset_command(
    group: str,
    topic: str,
    to: str | None,
    offsets: tuple[str, ...],
    retries: str,
    apply: bool,
    warehouse: str | None,
    profile: str | None,
) -> None:
    """Reset a group's offsets in a topic, in a new epoch. Without --apply, only show the new offsets."""
    from deltamq.jobs.export.reset import reset_offsets, target_of
    from deltamq.jobs.sink.open_sink import open_sink

    with errors_shown():
        if (to is None) == (not offsets):
            raise Refused("--to: give either --to or --offset", field="to")
        target = target_of(to, int(utc_now().timestamp() * 1_000)) if to is not None else dict(map(_offset, offsets))
        sink = open_sink(_settings(conf_of(profile, warehouse)))
        kept: Literal["keep", "drop"] = "keep" if retries == "keep" else "drop"
        done = reset_offsets(sink.warehouse, group, topic, target, retries=kept, dry_run=not apply)
        for partition, offset in done.offsets.items():
            click.echo(f"{partition} {offset}")
        if done.epoch is None:
            click.echo(f"group {group} would get {done.messages} messages; add --apply to do it")
        else:
            click.echo(f"group {group} gets {done.messages} messages, in epoch {done.epoch}")


def _offset(text: str) -> tuple[str, int]:
    partition, _, offset = text.rpartition("=")
    if not partition or not offset.isdigit():
        raise Refused(f"--offset: must be PARTITION=OFFSET, not {text!r}", field="offset")
    return partition, int(offset)
