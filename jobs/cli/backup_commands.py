"""`deltamq backup`: copies of the warehouse, made while everything runs (SPEC RELY-12, RELY-13)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from deltamq.jobs.cli.options import errors_shown, moment_of, opened, warehouse_uri, with_options, with_warehouse
from deltamq.jobs.cli.text import bytes_bar
from deltamq.jobs.run.last_run import utc_now
from deltamq.jobs.tasks.warehouse_files import files_at
from deltamq.jobs.tasks.warehouses import absolute
from deltamq.mq.errors import Refused
from deltamq.tables.backup.backup import back_up
from deltamq.tables.backup.files import Backup, BackupFolder
from deltamq.tables.backup.restore import restore

_MS: Final = 1_000
_MIB: Final = 1 << 20

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
_folder = click.argument("folder", metavar="BACKUPS")


@click.group(name="backup")
def backup_group() -> None:
    """Make backups of a warehouse while it is in use, check them, and restore them.

    BACKUPS is a folder, or a URL of an object store (s3://, gs://, abfss://), on other disks than the warehouse's.
    """


@backup_group.command(name="create")
@_folder
@_as_json
@with_warehouse
def create_command(warehouse: str | None, profile: str | None, folder: str, as_json: bool) -> int:
    """Copy what earlier backups in BACKUPS do not have yet; exit with 1 if a table is damaged."""
    with errors_shown(), opened(warehouse_uri(profile, warehouse)) as tables:
        to = absolute(folder)
        if f"{to}/".startswith(f"{tables.uri}/"):
            raise Refused("the backups would be in the warehouse itself: name another folder", field="BACKUPS")
        with bytes_bar("tables") as bar:
            backup = back_up(
                tables.store,
                files_at(to, create=True),
                now_ms=_now_ms,
                progress=lambda done, todo, size: bar(size, None, f"{done} of {todo} tables"),
            )
    if as_json:
        click.echo(json.dumps(_shown(backup)))
    else:
        click.echo(_line(backup))
        for table, reason in backup.damaged.items():
            click.echo(f"  not in it: {table}: {reason}; `deltamq verify` says more", err=True)
        for name in backup.exports:
            click.echo(f"  not in it: the progress of export {name}, whose table is elsewhere", err=True)
    return 1 if backup.damaged else 0


@backup_group.command(name="list")
@_folder
@_as_json
def list_command(folder: str, as_json: bool) -> None:
    """Show the backups, the oldest first."""
    with errors_shown():
        kept = _opened(folder)
        backups = [kept.backup(name) for name in kept.names()]
    if as_json:
        click.echo(json.dumps([_shown(backup) for backup in backups], indent=2))
        return
    for backup in backups:
        click.echo(_line(backup))
    if not backups:
        click.echo(f"no backups in {folder}; `deltamq backup create {folder}` makes one")


@backup_group.command(name="verify")
@_folder
@click.option("--backup", "name", metavar="NAME", help="Only this one, as `list` names it.")
def verify_command(folder: str, name: str | None) -> int:
    """Read and check every byte; exit with 1 if something is wrong."""
    with errors_shown():
        kept = _opened(folder)
        names = kept.names() if name is None else [name]
        wrong = sum(_faults(kept, kept.backup(each)) for each in names)
    click.echo(f"{len(names)} backups checked, {wrong} damages found")
    return 1 if wrong or not names else 0


@backup_group.command(name="remove")
@_folder
@click.option("--keep", type=click.IntRange(min=1), required=True, metavar="N", help="Keep the newest N backups.")
def remove_command(folder: str, keep: int) -> None:
    """Remove old backups, and the files that no other one needs once they are a day old."""
    with errors_shown():
        kept = _opened(folder)
        names = kept.names()[:-keep]
        freed = kept.remove(names, now_ms=_now_ms())
    click.echo(f"{len(names)} backups removed, {freed / _MIB:,.1f} MiB freed")


@backup_group.command(name="restore")
@_folder
@click.option("--to", "to", required=True, metavar="WAREHOUSE", help="A new folder or URL, which must be empty.")
@with_options(
    click.option("--backup", "name", metavar="NAME", help="As `list` names it; default: the newest."),
    click.option("--at", metavar="TIME", help="Instead: the newest that had ended at this time (RFC 3339)."),
)
def restore_command(folder: str, to: str, name: str | None, at: str | None) -> None:
    """Make a warehouse of a backup; a restore that was interrupted goes on."""
    with errors_shown():
        kept = _opened(folder)
        if name is not None and at is not None:
            raise Refused("--backup and --at both choose a backup: give one of them", field="at")
        until_ms = None if at is None else round(moment_of(at, "at").timestamp() * _MS)
        backup = kept.newest(until_ms=until_ms) if name is None else kept.backup(name)
        with bytes_bar(backup.name) as bar:
            store = files_at(absolute(to), create=True)
            restore(kept, backup, store, progress=lambda done, total: bar(done, total, backup.name))
    click.echo(f"{absolute(to)} is backup {_line(backup)}")
    for export in backup.exports:
        click.echo(f"  export {export} is not in it: add it again, to a new table", err=True)


def _faults(kept: BackupFolder, backup: Backup) -> int:
    """Print what is wrong with a backup, and return how much that is."""
    with bytes_bar(backup.name) as bar:
        faults = kept.faults(backup, progress=lambda done, total: bar(done, total, backup.name))
    for fault in faults:
        click.echo(f"{backup.name}: {fault}")
    return len(faults)


def _opened(folder: str) -> BackupFolder:
    return BackupFolder(files_at(absolute(folder)))


def _now_ms() -> int:
    return round(utc_now().timestamp() * _MS)


def _shown(backup: Backup) -> dict[str, object]:
    shown = msgspec.to_builtins(backup)
    return {**{name: shown[name] for name in shown if name not in ("files", "archive")}, "bytes": backup.size}


def _line(backup: Backup) -> str:
    began = datetime.fromtimestamp(backup.began_ms / _MS, UTC)
    damaged = f", {len(backup.damaged)} damaged tables are not in it" if backup.damaged else ""
    return (
        f"{backup.name}: everything before {began:%Y-%m-%dT%H:%M:%SZ}, {backup.tables:,} tables, "
        f"{backup.messages:,} messages, {backup.size / _MIB:,.1f} MiB{damaged}"
    )
