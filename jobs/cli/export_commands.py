"""`deltamq jobs export`, `replay` and `reset`: jobs with parameters, which need no service (SPEC SPARK-9, SPARK-10)."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from jobs.run.registry import with_spark_engine
from jobs.run.storage import storage
from mq.errors import DeltaMQError, Refused
from tables.config import Config, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobs.export.definition import Definition
    from jobs.export.replay import Chosen
    from jobs.stream.sink_place import SinkSettings

__all__ = ["export_group", "replay_command", "reset_command"]

_warehouse = click.option("--warehouse", metavar="DIR", help="Folder or URL of the warehouse.")
_profile = click.option("--profile", metavar="NAME", help="Settings of conf/NAME.toml (local).")
_CONTINUOUS_S: Final = 5.0


def _with_place(command: Callable[..., None]) -> Callable[..., None]:
    return _warehouse(_profile(command))


def _conf(profile: str | None, warehouse: str | None) -> Config:
    conf = load(profile, {"warehouse.uri": warehouse})
    uri = conf.warehouse.uri
    return conf if "://" in uri else load(profile, {"warehouse.uri": str(Path(uri).resolve())})


@contextlib.contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except (DeltaMQError, json.JSONDecodeError) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _session(conf: Config) -> Iterator[SparkSession]:
    from jobs.sql import spark_session  # importing Spark takes longer than a list should

    spark = spark_session("deltamq-export", warehouse=conf.warehouse.uri)
    try:
        yield spark
    finally:
        spark.stop()


# Export -------------------------------------------------------------------------------------------------------


@click.group(name="export")
def export_group() -> None:
    """Topics into typed Delta tables: run one, or define what the scheduled job `export` runs."""


def _defining(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what an export is."""
    options = [
        click.option("--topic", metavar="TOPIC", required=True, help="The topic."),
        click.option("--to", metavar="TABLE_OR_PATH", required=True, help="The table; with a / it is a path."),
        click.option("--schema", metavar="DDL", help='Fields of a body: "id BIGINT NOT NULL, amount DOUBLE".'),
        click.option("--json-schema", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
        click.option("--name", metavar="NAME", help="What its progress is called (the topic)."),
        click.option("--column", "columns", multiple=True, default=("append_time",), help="Columns of the message."),
        click.option("--allow-data-loss", is_flag=True, help="Go on when retention was faster."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _defined(given: dict[str, Any]) -> Definition:
    from jobs.export.definition import definition_of

    path = given["json_schema"]
    return definition_of(
        given["topic"],
        given["to"] if "://" in given["to"] or "/" not in given["to"] else str(Path(given["to"]).resolve()),
        schema=given["schema"],
        json_schema=None if path is None else json.loads(path.read_text(encoding="utf-8")),
        name=given["name"],
        columns=given["columns"],
        fail_on_data_loss=not given["allow_data_loss"],
    )


@export_group.command(name="add")
@_defining
@_with_place
def add_command(warehouse: str | None, profile: str | None, **given: Any) -> None:
    """Define an export, or change its schema; the job `export` runs it from then on."""
    from jobs.export.definition import save

    with _errors_told():
        # only Spark can tell whether a DDL is one: the first run does
        found = save(storage(_conf(profile, warehouse).warehouse.uri), _defined(given))
        click.echo(f"export {found.name}: {found.topic} -> {found.to}")


@export_group.command(name="run")
@_defining
@click.option("--mode", type=click.Choice(["once", "continuous"]), default="once", help="Until here, or until Ctrl-C.")
@_with_place
def run_command(warehouse: str | None, profile: str | None, mode: str, **given: Any) -> None:
    """Define an export and run it now."""
    from jobs.export.definition import save
    from jobs.export.export import run_export
    from jobs.export.typed_body import fields_of

    with _errors_told():
        conf = _conf(profile, warehouse)
        store = storage(conf.warehouse.uri)
        wanted = _defined(given)
        with _session(conf) as spark:
            fields_of(wanted.schema)
            found = save(store, wanted)
            stopped = _stopped() if mode == "continuous" else None
            while True:
                done = run_export(spark, store, found, conf.warehouse.uri)
                if stopped is None or done["batches"]:
                    click.echo(" ".join(f"{key}={value}" for key, value in done.items()))
                if stopped is None or stopped.wait(_CONTINUOUS_S):
                    return


def _stopped() -> threading.Event:
    """Return what SIGTERM and Ctrl-C set."""
    stopped = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopped


@export_group.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document for machines.")
@_with_place
def list_command(as_json: bool, warehouse: str | None, profile: str | None) -> None:
    """Show every export: what goes where, and how far it is."""
    from jobs.export.definition import definitions
    from jobs.export.plan import Plans

    with _errors_told():
        store = storage(_conf(profile, warehouse).warehouse.uri)
        shown = []
        for found in definitions(store):
            state = Plans(store, found.id).state()
            progress = {"rows": state.rows, "quarantined": state.quarantined, "batch": state.batch}
            what = {"name": found.name, "topic": found.topic, "to": found.to, "schema": found.schema}
            shown.append({**what, **progress, "offsets": state.ends})
        if as_json:
            click.echo(json.dumps(shown, indent=2))
            return
        for one in shown:
            counts = f"{one['rows']} rows, {one['quarantined']} in quarantine"
            click.echo(f"{one['name']}: {one['topic']} -> {one['to']}, {counts}\n    {one['schema']}")


@export_group.command(name="remove")
@click.argument("name")
@_with_place
def remove_command(name: str, warehouse: str | None, profile: str | None) -> None:
    """Forget an export and how far it is; its tables stay."""
    from jobs.export.definition import remove_definition

    with _errors_told():
        remove_definition(storage(_conf(profile, warehouse).warehouse.uri), name)
        click.echo(f"export {name} is forgotten")


@export_group.command(name="replay-quarantine")
@click.argument("name")
@_with_place
def replay_quarantine_command(name: str, warehouse: str | None, profile: str | None) -> None:
    """Parse what is in quarantine again, by the export's schema of now; what fits moves to the table."""
    from jobs.export.definition import read_definition
    from jobs.export.export import replay_quarantine

    with _errors_told():
        conf = _conf(profile, warehouse)
        store = storage(conf.warehouse.uri)
        found = read_definition(store, name)
        with _session(conf) as spark:
            done = replay_quarantine(spark, store, found, conf.warehouse.uri)
        click.echo(f"{done['rows']} rows moved to {found.to}, {done['quarantined']} stay in {found.quarantine}")


# Dead letters and offsets -------------------------------------------------------------------------------------


def _settings(conf: Config) -> SinkSettings:
    from jobs.stream.sink_place import SinkSettings

    storage(conf.warehouse.uri)  # a warehouse that is not there is not made
    return SinkSettings.of(conf, conf.warehouse.uri)


@click.command(name="replay")
@click.option("--group", metavar="GROUP", required=True, help="Whose dead letters.")
@click.option("--to", type=click.Choice(["origin", "retry"]), default="origin", help="For all groups, or this one.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only those that came from there.")
@click.option("--id", "message_ids", multiple=True, metavar="MESSAGE_ID", help="Only these messages.")
@click.option("--since", metavar="TIME", help="Only those that died then or later (RFC 3339).")
@click.option("--until", metavar="TIME", help="Only those that died before.")
@click.option("--apply", is_flag=True, help="Send them; without it they are only counted.")
@_with_place
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
    """Send a group's dead letters back; first look how many these are, then say --apply.

    Asked for again, nothing is stored twice. With jobs.engine = "spark" the work is done in tasks.
    """
    from jobs.export.replay import Chosen, replay_dead_letters

    with _errors_told(), contextlib.ExitStack() as ending:
        conf = _conf(profile, warehouse)
        chosen: Chosen = Chosen(
            topics=frozenset(topics) or None,
            message_ids=frozenset(message_ids) or None,
            since=_time(since, "--since"),
            until=_time(until, "--until"),
        )
        spark = ending.enter_context(_session(conf)) if with_spark_engine(conf) else None
        target: Literal["origin", "retry"] = "origin" if to == "origin" else "retry"
        done = replay_dead_letters(_settings(conf), group, chosen, to=target, dry_run=not apply, spark=spark)
        if not apply:
            click.echo(f"{done.matched} dead letters would be sent back; say --apply to do it")
            return
        click.echo(f"{done.replayed} dead letters sent back, {done.duplicates} were there already")
        for code, count in done.failed.items():
            click.echo(f"{count} not sent back: {code}", err=True)
        if done.failed:
            raise SystemExit(1)


def _time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Refused(f"{option}: a time with its zone, such as 2026-01-31T12:00:00Z, not {text!r}", field=option)
    return moment


@click.command(name="reset")
@click.option("--group", metavar="GROUP", required=True, help="Whose offsets.")
@click.option("--topic", metavar="TOPIC", required=True, help="In which topic.")
@click.option("--to", metavar="WHERE", help="earliest, latest, or an RFC 3339 time.")
@click.option("--offset", "offsets", multiple=True, metavar="PARTITION=OFFSET", help="Instead: one partition's offset.")
@click.option("--retries", type=click.Choice(["keep", "drop"]), default="keep", help="What waits to come again.")
@click.option("--apply", is_flag=True, help="Do it; without it the offsets are only shown.")
@_with_place
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
    """Put a group elsewhere in a topic, in a new epoch; first look where, then say --apply."""
    from jobs.export.reset import reset_offsets, target_of
    from jobs.stream.sink_place import place_of

    with _errors_told():
        if (to is None) == (not offsets):
            raise Refused("--to: give it or --offset, exactly one of both", field="to")
        target = target_of(to) if to is not None else dict(map(_offset, offsets))
        place = place_of(_settings(_conf(profile, warehouse)))
        kept: Literal["keep", "drop"] = "keep" if retries == "keep" else "drop"
        done = reset_offsets(place.warehouse, group, topic, target, retries=kept, dry_run=not apply)
        for partition, offset in done.offsets.items():
            click.echo(f"{partition} {offset}")
        if done.epoch is None:
            click.echo(f"group {group} would get {done.messages} messages; say --apply to do it")
        else:
            click.echo(f"group {group} gets {done.messages} messages, in epoch {done.epoch}")


def _offset(text: str) -> tuple[str, int]:
    partition, _, offset = text.rpartition("=")
    if not partition or not offset.isdigit():
        raise Refused(f"--offset: must be PARTITION=OFFSET, not {text!r}", field="offset")
    return partition, int(offset)
