"""`deltamq dead-letters ...`: list a group's dead letters, and send them back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, Literal

import click
import msgspec

from mq.client.admin import Admin, DeadLetter
from mq.client.cli.console import PATIENCE, error_line, one_line, print_json, service_options
from mq.client.cli.groups import parse_offsets
from mq.client.http import ClientAccess
from mq.errors import DeltaMQError

__all__ = ["dead_letters"]

_PAGE: Final = 500
_FAILED: Final = 1


@click.group("dead-letters")
def dead_letters() -> None:
    """List the messages that a group gave up, and send them back."""


@dead_letters.command("list")
@click.argument("group")
@click.option(
    "--max", "max_messages", type=click.IntRange(1), default=100, show_default=True, help="Print at most this number."
)
@service_options
def list_letters(group: str, max_messages: int, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print dead letters of GROUP, one a line: offset, attempts, reason, origin, key, body; or JSON with --json."""
    line = _json_line if as_json else _text_line
    with Admin(url, patience=PATIENCE, **access) as admin:
        for letters in _pages(admin, group, max_messages):
            sys.stdout.buffer.write(b"".join(map(line, letters)))
            sys.stdout.buffer.flush()


def _pages(admin: Admin, group: str, most: int) -> Iterator[list[DeadLetter]]:
    offset: int | None = 0
    while most > 0 and offset is not None:
        page = admin.dead_letters(group, limit=min(most, _PAGE), offset=offset)
        yield page.messages
        most -= len(page.messages)
        offset = page.next_offset


def _text_line(letter: DeadLetter) -> bytes:
    origin = letter.origin
    cells = (
        f"{letter.partition}:{letter.offset}",
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
@click.argument("group")
@click.option("--at", "places", multiple=True, help="PARTITION=OFFSET of a dead letter; may be repeated. Default: all.")
@click.option(
    "--to",
    type=click.Choice(["origin", "retry"]),
    default="origin",
    show_default=True,
    help="origin: to the topic that they came from, for all groups; retry: to this group alone.",
)
@service_options
def replay(
    group: str,
    places: tuple[str, ...],
    to: Literal["origin", "retry"],
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> int:
    """Send dead letters of GROUP back. A second run stores nothing twice; exits 1 if some could not be sent."""
    offsets: dict[str, list[int]] = {}
    for place in places:
        for partition, offset in parse_offsets((place,), "--at").items():
            offsets.setdefault(partition, []).append(offset)
    with Admin(url, patience=PATIENCE, **access) as admin:
        done = admin.replay_dead_letters(group, offsets=offsets or None, to=to)
    if as_json:
        print_json(done)
    else:
        again = f", {done.duplicates:,} had been sent before" if done.duplicates else ""
        click.echo(f"sent {done.replayed:,} dead letters back{again}")
    for failed in done.failed:
        error = DeltaMQError(f"{failed.partition}:{failed.offset} was not sent back", code=failed.code)
        click.echo(error_line(error, as_json=as_json), err=True)
    return _FAILED if done.failed_total else 0
