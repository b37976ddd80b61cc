"""`deltamq dead-letters ...`: list and count a group's dead letters, send them back, delete them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, cast

import click
import msgspec

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.dead_letter_admin import DeadLetter
from deltamq.mq.client.cli.console import (
    PATIENCE,
    error_line,
    one_line,
    print_json,
    print_table,
    service_options,
    watchable,
)
from deltamq.mq.client.cli.groups import PLACE_HELP, parse_moment, parse_offsets
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.wire.stored import DeadLetterCounts, FailedReplay

_PAGE: Final = 500
_FAILED: Final = 1
#: Columns of a table of counts.
_NUMBERS: Final = ("new", "sent back", "deleted")

Command = TypeVar("Command", bound=Callable[..., Any])
#: The options of `_which`, as the calls of `Admin` take them.
Which = dict[str, Any]


class _Counting(click.Group):
    """`deltamq dead-letters --group-by reason` is `count` of all groups: where people look first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("--") and args[0] != "--help":
            args = ["count", *args]
        return super().parse_args(ctx, args)


@click.group("dead-letters", cls=_Counting)
def dead_letters() -> None:
    """List and count the messages that a group gave up, send them back, delete them.

    With options alone, as in --group-by reason: count those of all groups.
    """


def _which(states: str | None = None) -> Callable[[Command], Command]:
    """Add the options that select dead letters, as `which`; `states` is the help of `--state` (None: no `--state`)."""

    def options_added(command: Command) -> Command:
        @functools.wraps(command)
        def chosen(*, since: str | None, **given: Any) -> Any:
            which = {name: given.pop(name) for name in names}
            return command(which={**which, "since": _since(since)}, **given)

        names = ["topic", "reason"] if states is None else ["state", "topic", "reason"]
        options = [
            click.option("--since", metavar="TIME", help=f"Only dead letters since then: {PLACE_HELP}."),
            click.option("--topic", metavar="TOPIC", help="Only dead letters from this topic."),
            click.option("--reason", metavar="REASON", help="Only dead letters with this reason."),
        ]
        if states is not None:
            options.append(click.option("--state", type=click.Choice(["new", "sent_back", "deleted"]), help=states))
        for option in options:
            chosen = option(chosen)
        return cast(Command, chosen)

    return options_added


def _at(help_text: str) -> Callable[[Command], Command]:
    return click.option("--at", "places", multiple=True, metavar="PARTITION=OFFSET", help=help_text)


def _since(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = parse_moment(text, "--since")
    if isinstance(moment, str):
        raise click.BadParameter("name a time", param_hint="--since")
    return moment


def offsets_at(places: Sequence[str]) -> dict[str, list[int]] | None:
    """Return the offsets of places, `PARTITION=OFFSET`, by partition; None if there are none."""
    offsets: dict[str, list[int]] = {}
    for place in places:
        for partition, offset in parse_offsets((place,), "--at").items():
            offsets.setdefault(partition, []).append(offset)
    return offsets or None


# Look -----------------------------------------------------------------------------------------------------------------


@dead_letters.command("list")
@click.argument("group")
@click.option(
    "--max", "max_messages", type=click.IntRange(1), default=100, show_default=True, help="Print at most this number."
)
@_which("Only dead letters in this state. Default: all but deleted ones.")
@service_options
def list_letters(
    group: str,
    max_messages: int,
    which: Which,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print dead letters of GROUP, one a line: offset, state, attempts, reason, origin, key, body; or JSON."""
    line = _json_line if as_json else _text_line
    with Admin(url, patience=PATIENCE, **access) as admin:
        for letters in _pages(admin, group, max_messages, which):
            sys.stdout.buffer.write(b"".join(map(line, letters)))
            sys.stdout.buffer.flush()


def _pages(admin: Admin, group: str, most: int, which: Which) -> Iterator[list[DeadLetter]]:
    cursor: str | None = None
    while most > 0:
        page = admin.dead_letters(group, limit=min(most, _PAGE), cursor=cursor, **which)
        yield page.messages
        most -= len(page.messages)
        cursor = page.cursor
        if cursor is None:
            return


def _text_line(letter: DeadLetter) -> bytes:
    origin = letter.origin
    cells = (
        f"{letter.partition}:{letter.offset}",
        letter.state,
        str(letter.attempts),
        letter.reason or "",
        "" if origin is None else f"{origin.partition}:{origin.offset}",
        letter.key or "",
        letter.payload.decode("utf-8", "backslashreplace"),
    )
    return "\t".join(map(one_line, cells)).encode() + b"\n"


def _json_line(letter: DeadLetter) -> bytes:
    document: dict[str, Any] = {
        name: getattr(letter, name) for name in letter.__struct_fields__ if getattr(letter, name) is not None
    }
    return msgspec.json.encode(document) + b"\n"


@dead_letters.command()
@click.argument("group", required=False)
@click.option(
    "--group-by",
    "by",
    type=click.Choice(["reason", "topic"]),
    default="reason",
    show_default=True,
    help="Count by this.",
)
@_which()
@service_options
@watchable
def count(
    group: str | None,
    by: Literal["reason", "topic"],
    which: Which,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print how many new, sent back and deleted dead letters GROUP has, or each group that has some."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        if group is None:
            _of_all(admin, by, which, as_json=as_json)
            return
        counts = admin.count_dead_letters(group, by=by, **which)
    if as_json:
        print_json(counts)
        return
    print_table((by, *_NUMBERS), [*_rows(counts, by), ("all", *_sums(counts))], right=_NUMBERS)


def _of_all(admin: Admin, by: Literal["reason", "topic"], which: Which, *, as_json: bool) -> None:
    every = [admin.count_dead_letters(group, by=by, **which) for group in admin.list_groups()]
    some = [counts for counts in every if any(_sums(counts))]
    if as_json:
        print_json(some)
        return
    rows: list[tuple[object, ...]] = [(counts.group, *row) for counts in some for row in _rows(counts, by)]
    sums = map(sum, zip((0, 0, 0), *map(_sums, some), strict=True))
    print_table(("group", by, *_NUMBERS), [*rows, ("all", "", *sums)], right=_NUMBERS)


def _rows(counts: DeadLetterCounts, by: str) -> list[tuple[object, ...]]:
    return [(one_line(getattr(row, by) or ""), row.new, row.sent_back, row.deleted) for row in counts.counts]


def _sums(counts: DeadLetterCounts) -> tuple[int, int, int]:
    return counts.new, counts.sent_back, counts.deleted


# Send back, delete ----------------------------------------------------------------------------------------------------


@dead_letters.command()
@click.argument("group")
@_at("A dead letter to send back; may be repeated. Default: all that are new.")
@_which("Dead letters in this state; `sent_back` sends again.")
@click.option(
    "--to",
    type=click.Choice(["origin", "retry"]),
    default="origin",
    show_default=True,
    help="origin: to the topic that they came from, for all groups; retry: only to this group.",
)
@service_options
def replay(
    group: str,
    places: tuple[str, ...],
    which: Which,
    to: Literal["origin", "retry"],
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> int:
    """Send dead letters of GROUP back. A second run stores nothing twice; exits 1 if some could not be sent."""
    offsets = offsets_at(places)
    with Admin(url, patience=PATIENCE, **access) as admin:
        done = admin.replay_dead_letters(group, offsets=offsets, to=to, **which)
    if as_json:
        print_json(done)
    else:
        again = f", {done.duplicates:,} had been sent before" if done.duplicates else ""
        click.echo(f"sent {done.replayed:,} dead letters back{again}")
    return _report_failed(done.failed, done.failed_total, "sent back", as_json)


@dead_letters.command()
@click.argument("group")
@_at("A dead letter to delete; may be repeated.")
@_which("Dead letters in this state.")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@service_options
def delete(
    group: str,
    places: tuple[str, ...],
    which: Which,
    everything: bool,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> int:
    """Delete dead letters of GROUP: say which, or --all. Only `list --state deleted` shows them; they stay dead."""
    offsets = offsets_at(places)
    if everything is any((offsets, *which.values())):
        raise click.UsageError("say either which dead letters, or --all")
    with Admin(url, patience=PATIENCE, **access) as admin:
        done = admin.delete_dead_letters(group, offsets=offsets, everything=everything, **which)
    if as_json:
        print_json(done)
    else:
        again = f", {done.duplicates:,} had been deleted before" if done.duplicates else ""
        click.echo(f"deleted {done.deleted:,} dead letters{again}")
    return _report_failed(done.failed, done.failed_total, "deleted", as_json)


def _report_failed(failed: Sequence[FailedReplay], total: int, what: str, as_json: bool) -> int:
    for letter in failed:
        error = DeltaMQError(f"{letter.partition}:{letter.offset} was not {what}", code=letter.code)
        click.echo(error_line(error, as_json=as_json), err=True)
    return _FAILED if total else 0
