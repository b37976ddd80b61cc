"""`deltamq verify`: reads and checks every byte of every partition, and repairs damage if possible.

Nothing is changed without `--repair`, and messages are given up only after a question that names their offsets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import click

from deltamq.jobs.cli.options import errors_shown, opened, warehouse_uri
from deltamq.jobs.cli.text import bytes_bar
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.repairs import RepairKind, find_repair, repair
from deltamq.tables.ops.verification import Finding, Gravity, verify
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.meta_fences import put_up_fences
from deltamq.tables.queue.metadata import read_meta

_COLOURS: Final = {Gravity.DAMAGE: "red", Gravity.BLEMISH: "yellow", Gravity.NOTE: "white"}


@click.command(name="verify")
@click.option("--warehouse", envvar="DELTAMQ_WAREHOUSE_URI", help="The tables' folder or URL; default: the profile's.")
@click.option("--profile", envvar="DELTAMQ_PROFILE", help="conf/<profile>.toml")
@click.option("--topic", help="Only the partitions of this topic.")
@click.option("--repair", "mend", is_flag=True, help="Repair damage if possible; stop all writers first.")
@click.option("--yes", is_flag=True, help="With --repair: give up the offsets that a repair names without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def verify_command(
    warehouse: str | None, profile: str | None, topic: str | None, mend: bool, yes: bool, as_json: bool
) -> int:
    """Read and check every byte of every partition; exit with 1 if something is wrong."""
    with errors_shown(), opened(warehouse_uri(profile, warehouse)) as tables:
        if mend:
            tables.check_may_write("a repair")
        refs = [r for space in Space for r in tables.refs(space) if topic is None or r.topic == topic]
        with bytes_bar(f"{len(refs)} partitions") as bar:
            findings = verify(tables, refs, lambda ref, done, total: bar(done, total, f"{ref.topic} {ref.name}"))
        if mend and _mend(tables, findings, ask=not yes):
            findings = verify(tables, refs)
        _print(findings, len(refs), as_json=as_json)
    return 1 if any(f.gravity is Gravity.DAMAGE for f in findings) else 0


def _mend(warehouse: Warehouse, findings: Sequence[Finding], *, ask: bool) -> bool:
    """Return whether anything was repaired."""
    mended = False
    for ref in dict.fromkeys(f.ref for f in findings if f.gravity is not Gravity.NOTE):
        while (mend := find_repair(warehouse, ref)) is not None:
            click.echo(f"{ref.folder}: {mend.text}", err=True)
            if ask and mend.question is not None and not click.confirm(mend.question, err=True):
                break
            for moved in repair(warehouse, mend):
                click.echo(f"  kept: {moved}", err=True)
            if mend.kind is RepairKind.REFILL and ref.space is not Space.SYS:
                _put_up_fences(warehouse, ref)
            mended = True
    return mended


def _put_up_fences(warehouse: Warehouse, ref: PartitionRef) -> None:
    meta = read_meta(warehouse.store)
    for name, epoch in ({} if meta is None else put_up_fences(warehouse, meta, ref)).items():
        click.echo(f"  put up again: fence {name} with epoch {epoch}", err=True)


def _print(findings: Sequence[Finding], partitions: int, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"partitions": partitions, "findings": [_as_json(f) for f in findings]}))
        return
    for finding in findings:
        word = click.style(f"{finding.gravity.value:>8}", fg=_COLOURS[finding.gravity])
        click.echo(f"{word}  {finding.file}: {finding.problem}")
        click.echo(f"{'':>8}  -> {finding.remedy}")
    wrong = sum(f.gravity is Gravity.DAMAGE for f in findings)
    click.echo(f"{partitions} partitions checked, {wrong} damages found")


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "partition": finding.ref.name,
        "topic": finding.ref.topic,
        "space": finding.ref.space.value,
        "file": finding.file,
        "problem": finding.problem,
        "remedy": finding.remedy,
        "gravity": finding.gravity.value,
    }
