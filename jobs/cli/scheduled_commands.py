"""`deltamq jobs scheduled`: replays and resets that the jobs of these names do again and again (SPEC SPARK-10)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from jobs.cli.place import conf_of, errors_told, moment_of, show, with_options, with_place
from jobs.export import duration_s
from jobs.run import utc_now
from jobs.tasks import storage
from mq.errors import Refused

if TYPE_CHECKING:
    from jobs.export import AnyScheduled

__all__ = ["scheduled_group"]

_MS: Final = 1_000
_EVERY_DIGITS_MAX: Final = 9


@click.group(name="scheduled")
def scheduled_group() -> None:
    """Replays and resets that are done again and again, by the jobs replay and reset."""


#: What both have in common.
_when: Final = with_options(
    click.argument("name"),
    click.option("--group", metavar="GROUP", required=True, help="Whose dead letters or offsets."),
    click.option("--every", metavar="DURATION", required=True, help="How often, such as 30m, 24h, 7d."),
    click.option("--first", metavar="TIME", help="When first (RFC 3339), and so when ever after; by default now."),
)


@scheduled_group.command(name="add-replay")
@_when
@click.option("--to", type=click.Choice(["origin", "retry"]), default="origin", help="For all groups, or this one.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only those that came from there.")
@with_place
def add_replay_command(warehouse: str | None, profile: str | None, **given: Any) -> None:
    """Send a group's dead letters back: at first all, then each time those that are new."""
    from jobs.export import ScheduledReplay

    with errors_told():
        _add(ScheduledReplay(to=given["to"], topics=given["topics"], **_times(given)), profile, warehouse)


@scheduled_group.command(name="add-reset")
@_when
@click.option("--topic", metavar="TOPIC", required=True, help="In which topic.")
@click.option("--to", metavar="WHERE", required=True, help="earliest, latest, or how long ago, such as -24h.")
@click.option("--retries", type=click.Choice(["keep", "drop"]), default="keep", help="What waits to come again.")
@with_place
def add_reset_command(warehouse: str | None, profile: str | None, **given: Any) -> None:
    """Put a group elsewhere in a topic, each time in a new epoch."""
    from jobs.export import ScheduledReset

    with errors_told():
        what = {name: given[name] for name in ("topic", "to", "retries")}
        _add(ScheduledReset(**what, **_times(given)), profile, warehouse)


@scheduled_group.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document for machines.")
@with_place
def list_command(as_json: bool, warehouse: str | None, profile: str | None) -> None:
    """Show what is scheduled, and when each is due next."""
    from jobs.export import KINDS, read_state, scheduled

    with errors_told():
        store = storage(conf_of(profile, warehouse).warehouse.uri)
        shown = []
        for kind in KINDS:
            for found in scheduled(store, kind):
                due = _time_of(read_state(store, found).due_ms)
                times = {"every_s": found.every_s, "due": due}
                shown.append({"kind": kind, "name": found.name, "does": found.said, **times})
        show(shown, "{kind} {name}: {does}, every {every_s} s, due {due}", as_json=as_json)


@scheduled_group.command(name="remove")
@click.argument("kind", type=click.Choice(["replay", "reset"]))
@click.argument("name")
@with_place
def remove_command(kind: str, name: str, warehouse: str | None, profile: str | None) -> None:
    """Forget one; what it did stays."""
    from jobs.export import remove_scheduled

    with errors_told():
        store = storage(conf_of(profile, warehouse).warehouse.uri)
        remove_scheduled(store, "replay" if kind == "replay" else "reset", name)
        click.echo(f"scheduled {kind} {name} is forgotten")


def _times(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that both have."""
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
    from jobs.export import save_scheduled

    save_scheduled(storage(conf_of(profile, warehouse).warehouse.uri), wanted)
    click.echo(
        f"scheduled {wanted.name}: {wanted.said}, every {wanted.every_s} s, first at {_time_of(wanted.first_ms)}"
    )


def _time_of(ms: int) -> str:
    return datetime.fromtimestamp(ms / _MS, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
