"""`deltamq jobs export`: define exports for the job `export`, or run an export now (SPEC SPARK-9)."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from deltamq.jobs.cli.options import conf_of, errors_shown, session, show, with_options, with_warehouse
from deltamq.jobs.tasks.warehouse_files import storage

if TYPE_CHECKING:
    from deltamq.tables.ops.exports import Definition


_CONTINUOUS_S: Final = 5.0


@click.group(name="export")
def export_group() -> None:
    """Export topics to typed Delta tables: run an export, or define exports for the scheduled job `export`."""


#: The options that define an export.
_defining: Final = with_options(
    click.option("--topic", metavar="TOPIC", required=True, help="The topic."),
    click.option("--to", metavar="TABLE_OR_PATH", required=True, help="The table; with a / it is a path."),
    click.option("--schema", metavar="DDL", help='Fields of a body: "id BIGINT NOT NULL, amount DOUBLE".'),
    click.option("--json-schema", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    click.option("--name", metavar="NAME", help="The name of the export's progress; default: the topic."),
    click.option("--column", "columns", multiple=True, default=("append_time",), help="Columns of the message."),
    click.option("--allow-data-loss", is_flag=True, help="Continue if retention removed messages before the export."),
)


def _defined(given: dict[str, Any]) -> Definition:
    from deltamq.jobs.export.definition import definition_of

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
@with_warehouse
def add_command(warehouse: str | None, profile: str | None, **given: Any) -> None:
    """Define an export, or change its schema; from then on, the job `export` runs it."""
    from deltamq.jobs.export.definition import save

    with errors_shown():
        # Only Spark can check a DDL, and whether it suits the table; each run does, before it plans a batch.
        definition = save(storage(conf_of(profile, warehouse).warehouse.uri), _defined(given))
        click.echo(f"export {definition.name}: {definition.topic} -> {definition.to}")


@export_group.command(name="run")
@_defining
@click.option(
    "--mode", type=click.Choice(["once", "continuous"]), default="once", help="To the current end, or until Ctrl-C."
)
@with_warehouse
def run_command(warehouse: str | None, profile: str | None, mode: str, **given: Any) -> None:
    """Define an export and run it now."""
    from deltamq.jobs.export.definition import save
    from deltamq.jobs.export.export import check_definition, run_export

    with errors_shown():
        conf = conf_of(profile, warehouse)
        store = storage(conf.warehouse.uri)
        wanted = _defined(given)
        with session(conf) as spark:
            check_definition(spark, wanted)
            definition = save(store, wanted)
            stopped = _stopped() if mode == "continuous" else None
            while True:
                done = run_export(spark, store, definition, conf.warehouse.uri)
                if stopped is None or done["batches"]:
                    click.echo(" ".join(f"{key}={value}" for key, value in done.items()))
                if stopped is None or stopped.wait(_CONTINUOUS_S):
                    return


def _stopped() -> threading.Event:
    stopped = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopped


@export_group.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document for machines.")
@with_warehouse
def list_command(as_json: bool, warehouse: str | None, profile: str | None) -> None:
    """Show every export: its topic, its table, and its progress."""
    from deltamq.tables.ops.exports import definitions, read_export_state, read_failure

    with errors_shown():
        store = storage(conf_of(profile, warehouse).warehouse.uri)
        shown = []
        for definition in definitions(store):
            state, failure = read_export_state(store, definition.id), read_failure(store, definition.id)
            progress = {"rows": state.rows, "quarantined": state.quarantined, "batch": state.batch}
            what = {
                "name": definition.name,
                "topic": definition.topic,
                "to": definition.to,
                "schema": definition.schema,
            }
            why = None if failure is None else failure.detail
            shown.append({**what, **progress, "offsets": state.ends, "failure": why})
        line = "{name}: {topic} -> {to}, {rows} rows, {quarantined} in quarantine\n    {schema}"
        show(shown, line, as_json=as_json)


@export_group.command(name="remove")
@click.argument("name")
@click.option(
    "--forget", is_flag=True, help="Delete the progress, too: if added again, the export stores everything again."
)
@with_warehouse
def remove_command(name: str, forget: bool, warehouse: str | None, profile: str | None) -> None:
    """Delete an export; its tables stay, and if it is added again, it goes on where it ended."""
    from deltamq.jobs.export.definition import remove_definition

    with errors_shown():
        remove_definition(storage(conf_of(profile, warehouse).warehouse.uri), name, forget=forget)
        click.echo(f"export {name} is removed")


@export_group.command(name="replay-quarantine")
@click.argument("name")
@with_warehouse
def replay_quarantine_command(name: str, warehouse: str | None, profile: str | None) -> None:
    """Parse the quarantine table again by the export's current schema; rows that fit move to the table."""
    from deltamq.jobs.export.export import replay_quarantine
    from deltamq.tables.ops.exports import read_definition

    with errors_shown():
        conf = conf_of(profile, warehouse)
        store = storage(conf.warehouse.uri)
        definition = read_definition(store, name)
        with session(conf) as spark:
            done = replay_quarantine(spark, store, definition, conf.warehouse.uri)
        click.echo(
            f"{done['rows']} rows moved to {definition.to}, {done['quarantined']} stay in {definition.quarantine}"
        )
