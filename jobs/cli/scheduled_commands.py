"""`deltamq jobs scheduled`: replays and resets that the jobs `replay` and `reset` carry out (SPEC SPARK-10)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from deltamq.jobs.cli.options import conf_of, errors_shown, moment_of, show, with_options, with_warehouse
from deltamq.jobs.run.last_run import utc_now
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Refused
from deltamq.mq.request_values import duration_s

if TYPE_CHECKING:
    from deltamq.jobs.export.schedules import AnyScheduled


_MS: Final = 1_000
_EVERY_DIGITS_MAX: Final = 9


@click.group(name="scheduled")
def scheduled_group() -> None:
    """Replays and resets by schedule, carried out by the jobs replay and reset."""


#: The options of both kinds.
_when: Final = with_options(
    click.argument("name"),
    click.option("--group", metavar="GROUP", required=True, help="The group of the dead letters or offsets."),
    click.option("--every", metavar="DURATION", required=True, help="The interval, such as 30m, 24h, 7d."),
    click.option(
        "--first", metavar="TIME", help="The first time (RFC 3339), from which the interval counts; default: now."
    ),
)


@scheduled_group.command(name="add-replay")
@_when
@click.option(
    "--to", type=click.Choice(["origin", "retry"]), default="origin", help="To all groups, or only to this group."
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only dead letters from this topic.")
@with_warehouse
def add_replay_command(warehouse: str | None, profile: str | None, **given: Any) -> None:
    """Schedule a replay of a group's dead letters: the first sends all back, each later replay the new ones."""
    from deltamq.jobs.export.schedules import ScheduledReplay

    with errors_shown():
        _add(ScheduledReplay(to=given["to"], topics=given["topics"], **_times(given)), profile, warehouse)


@scheduled_group.command(name="add-reset")
@_when
@click.option("--topic", metavar="TOPIC", required=True, help="The topic in which offsets are reset.")
@click.option("--to", metavar="WHERE", required=True, help="earliest, latest, or a time ago, such as -24h.")
@click.option("--retries", type=click.Choice(["keep", "drop"]), default="keep", help="Messages waiting for redelivery.")
@with_warehouse
def add_reset_command(warehouse: str | None, profile: str | None, **given: Any) -> None:
    """Schedule a reset of a group's offsets in a topic, each time in a new epoch."""
    from deltamq.jobs.export.schedules import ScheduledReset

    with errors_shown():
        fields = {name: given[name] for name in ("topic", "to", "retries")}
        _add(ScheduledReset(**fields, **_times(given)), profile, warehouse)


@scheduled_group.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document for machines.")
@with_warehouse
def list_command(as_json: bool, warehouse: str | None, profile: str | None) -> None:
    """Show the scheduled replays and resets, and when each is due next."""
    from deltamq.jobs.export.schedules import KINDS, read_state, scheduled

    with errors_shown():
        store = storage(conf_of(profile, warehouse).warehouse.uri)
        shown = []
        for kind in KINDS:
            for schedule in scheduled(store, kind):
                due = _time_of(read_state(store, schedule).due_ms)
                times = {"every_s": schedule.every_s, "due": due}
                shown.append({"kind": kind, "name": schedule.name, "does": schedule.description, **times})
        show(shown, "{kind} {name}: {does}, every {every_s} s, due {due}", as_json=as_json)


@scheduled_group.command(name="remove")
@click.argument("kind", type=click.Choice(["replay", "reset"]))
@click.argument("name")
@with_warehouse
def remove_command(kind: str, name: str, warehouse: str | None, profile: str | None) -> None:
    """Remove a scheduled replay or reset; its effects stay."""
    from deltamq.jobs.export.schedules import remove_scheduled

    with errors_shown():
        store = storage(conf_of(profile, warehouse).warehouse.uri)
        remove_scheduled(store, "replay" if kind == "replay" else "reset", name)
        click.echo(f"scheduled {kind} {name} is removed")


def _times(given: dict[str, Any]) -> dict[str, Any]:
    every_s = duration_s(given["every"], digits_max=_EVERY_DIGITS_MAX)
    if every_s is None:
        raise Refused(f"--every: must be a duration such as 30m, 24h or 7d, not {given['every']!r}", field="every")
    first = utc_now() if given["first"] is None else moment_of(given["first"], "--first")
    return {
        "name": given["name"],
        "group": given["group"],
        "every_s": every_s,
        "first_ms": int(first.timestamp() * _MS),
    }


def _add(wanted: AnyScheduled, profile: str | None, warehouse: str | None) -> None:
    from deltamq.jobs.export.schedules import save_scheduled

    save_scheduled(storage(conf_of(profile, warehouse).warehouse.uri), wanted)
    click.echo(
        f"scheduled {wanted.name}: {wanted.description}, every {wanted.every_s} s, first at {_time_of(wanted.first_ms)}"
    )


def _time_of(ms: int) -> str:
    return datetime.fromtimestamp(ms / _MS, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
