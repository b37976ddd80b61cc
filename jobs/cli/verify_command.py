"""`deltamq verify`: reads and checks every byte of every partition, and repairs what can be repaired.

Nothing is changed without `--repair`, and messages are given up only after a question that names their offsets. The
doctor's check of the warehouse is here, too; it reads only logs and sizes, so it takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from jobs.tasks import absolute
from mq.client.cli import Check, CheckOutcome, Subject
from mq.errors import DeltaMQError
from tables.config import load
from tables.log import Warehouse
from tables.ops import Finding, Gravity, find_repair, inspect, repair, verify
from tables.paths import PartitionRef, Space
from tables.settings import LogSettings
from tables.store import native_library

__all__ = ["doctor_checks", "verify_command"]

_SHOWN_MAX: Final = 20
_COLOURS: Final = {Gravity.DAMAGE: "red", Gravity.BLEMISH: "yellow", Gravity.NOTE: "white"}


@click.command(name="verify")
@click.option("--warehouse", envvar="DELTAMQ_WAREHOUSE_URI", help="The tables' folder or URL; default: the profile's.")
@click.option("--profile", envvar="DELTAMQ_PROFILE", help="conf/<profile>.toml")
@click.option("--topic", help="Only the partitions of this topic.")
@click.option("--repair", "mend", is_flag=True, help="Repair what can be repaired; stop all writers first.")
@click.option("--yes", is_flag=True, help="With --repair: give up the offsets that a repair names without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def verify_command(
    warehouse: str | None, profile: str | None, topic: str | None, mend: bool, yes: bool, as_json: bool
) -> int:
    """Read and check every byte of every partition; exit with 1 if something is wrong."""
    with _opened(_uri(profile, warehouse)) as opened:
        refs = [r for space in Space for r in opened.refs(space) if topic is None or r.topic == topic]
        with _bar(refs) as progress:
            findings = verify(opened, refs, progress)
        if mend and _mend(opened, findings, ask=not yes):
            findings = verify(opened, refs)
        _print(findings, len(refs), as_json=as_json)
    return 1 if any(f.gravity is Gravity.DAMAGE for f in findings) else 0


def _uri(profile: str | None, warehouse: str | None) -> str:
    return absolute(load(profile, {"warehouse.uri": warehouse}).warehouse.uri)


@contextlib.contextmanager
def _opened(uri: str) -> Iterator[Warehouse]:
    if "://" not in uri and not Path(uri).is_dir():
        raise click.ClickException(f"there is no warehouse at {uri}: name it with --warehouse")
    opened = Warehouse.open(uri, settings=LogSettings())
    try:
        yield opened
    finally:
        opened.close()


@contextlib.contextmanager
def _bar(refs: Sequence[PartitionRef]) -> Iterator[Callable[[PartitionRef, int, int], None]]:
    """Draw a bar on stderr while the block runs; nothing if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda ref, done, total: None
        return
    # rich takes 80 ms to import: only commands that draw a bar do so
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{len(refs)} partitions", total=None)

        def advance(ref: PartitionRef, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{ref.topic} {ref.name}")

        yield advance


def _mend(warehouse: Warehouse, findings: Sequence[Finding], *, ask: bool) -> bool:
    """Repair each partition as far as possible; return whether anything was done."""
    mended = False
    for ref in dict.fromkeys(f.ref for f in findings if f.gravity is not Gravity.NOTE):
        while (found := find_repair(warehouse, ref)) is not None:
            click.echo(f"{ref.folder}: {found.text}", err=True)
            if found.loses and ask and not click.confirm("Give these offsets up?", err=True):
                break
            for moved in repair(warehouse, found):
                click.echo(f"  kept: {moved}", err=True)
            mended = True
    return mended


def _print(findings: Sequence[Finding], partitions: int, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"partitions": partitions, "findings": [_as_json(f) for f in findings]}))
        return
    for found in findings:
        word = click.style(f"{found.gravity.value:>8}", fg=_COLOURS[found.gravity])
        click.echo(f"{word}  {found.file}: {found.problem}")
        click.echo(f"{'':>8}  -> {found.remedy}")
    wrong = sum(f.gravity is Gravity.DAMAGE for f in findings)
    click.echo(f"{partitions} partitions checked, {wrong} damages found")


def _as_json(found: Finding) -> dict[str, object]:
    return {
        "partition": found.ref.name,
        "topic": found.ref.topic,
        "space": found.ref.space.value,
        "file": found.file,
        "problem": found.problem,
        "remedy": found.remedy,
        "gravity": found.gravity.value,
    }


def doctor_checks(subject: Subject) -> Iterator[Check]:
    """Check that each partition's log is sound and its files have their sizes; `deltamq verify` reads them whole."""
    how = "one native call" if native_library() else "call by call in Python (`make setup` compiles a faster way: gcc)"
    yield Check(name="tables", health=CheckOutcome.OK, detail=f"commits to local disks: {how}")
    uri = _uri(subject.profile, subject.warehouse)
    if "://" not in uri and not Path(uri).is_dir():
        yield Check(name="tables", health=CheckOutcome.OK, detail=f"no warehouse at {uri} yet; the service creates it")
        return
    try:
        with _opened(uri) as warehouse:
            refs = [ref for space in Space for ref in warehouse.refs(space)]
            findings = [f for f in inspect(warehouse, refs) if f.gravity is not Gravity.NOTE]
    except DeltaMQError as error:
        yield Check(
            name="tables",
            health=CheckOutcome.FAILED,
            detail=f"{uri}: {error.detail}",
            remedy="examine the error and the disk",
        )
        return
    for found in findings[:_SHOWN_MAX]:
        health = CheckOutcome.FAILED if found.gravity is Gravity.DAMAGE else CheckOutcome.WARNING
        yield Check(name="tables", health=health, detail=f"{found.file}: {found.problem}", remedy=found.remedy)
    if len(findings) > _SHOWN_MAX:
        more = f"{len(findings) - _SHOWN_MAX} more findings"
        yield Check(
            name="tables", health=CheckOutcome.WARNING, detail=more, remedy="`deltamq verify` shows all of them"
        )
    if not findings:
        yield Check(name="tables", health=CheckOutcome.OK, detail=f"{len(refs)} partitions in {uri} are sound")
