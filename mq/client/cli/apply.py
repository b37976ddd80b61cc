"""`deltamq apply` and `deltamq describe`: topics, groups, principals, rules and quotas as files (SPEC LOOK-14)."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from deltamq.mq.auth.changes import last_administrator
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.desired import read_files, schema, to_toml
from deltamq.mq.client.admin.plan import carry_out, present
from deltamq.mq.client.cli.console import LONG_PATIENCE, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.errors import Conflict, Forbidden
from deltamq.mq.meta.desired import Change, Desired, plan, refused
from deltamq.mq.wire.cluster import AppliedAnswer, DifferingField


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--plan", "only_plan", is_flag=True, help="Only print what would change.")
@click.option("--prune", is_flag=True, help="Delete topics, groups, principals and rules that the files do not name.")
@click.option("--schema", "only_schema", is_flag=True, help="Only print the JSON schema of a file, for editors.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@service_options
def apply(
    path: Path | None,
    only_plan: bool,
    prune: bool,
    only_schema: bool,
    yes: bool,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Bring topics, groups, principals, rules and quotas to what PATH says: a .toml or .yaml file, or a folder of them.

    What PATH leaves out stays as it is. Applied again, it changes nothing. It stops at the first change that the
    service refuses; those before it are done, and the next run goes on. With --prune, nothing is done if the last
    administrator were to go.
    """
    if only_schema:
        print_json(schema())
        return
    if path is None:
        raise click.UsageError("name a file or a folder: deltamq apply PATH")
    wanted = read_files(path)
    with Admin(url, patience=LONG_PATIENCE, **access) as admin:
        there = _present(admin, wanted, prune=prune)
        changes = plan(wanted, there, prune=prune)
        # Without `prune` it is not known who else administers.
        impossible = refused(changes, wanted, there) if prune else []
        if not as_json:
            _print(changes, impossible)
        if impossible and not only_plan:
            raise last_administrator(impossible[0].name)
        deleted = [change for change in changes if change.does == "delete"]
        if deleted and not (only_plan or yes) and sys.stdin.isatty():
            click.confirm(f"delete {len(deleted)} of them, with what they hold?", abort=True, err=True)
        for change in () if only_plan else changes:
            carry_out(admin, change, wanted)
            if not as_json:
                click.echo(f"{change.does} {change.kind} {change.name}: done")
        if not only_plan:
            _record(admin, wanted, prune=prune)
    if as_json:
        shown = {"plan": only_plan, "changes": [change._asdict() for change in changes]}
        print_json(shown | ({"refused": [change._asdict() for change in impossible]} if impossible else {}))


def _record(admin: Admin, wanted: Desired, *, prune: bool) -> None:
    """Let the service remember what was applied, so that it can show what differs from it later."""
    try:
        admin.record_applied(wanted, replace=prune)
    except Forbidden:
        click.echo("not recorded: only who may administer the cluster may; `describe --drift` shows nothing", err=True)


@click.command()
@click.option("--as-code", is_flag=True, default=True, help="As a file for `apply`; so it is without options, too.")
@click.option("--drift", is_flag=True, help="Only print what differs from what was applied last; exits 1 if any does.")
@service_options
def describe(as_code: bool, drift: bool, url: str, access: ClientAccess, as_json: bool) -> int:
    """Print all topics, groups, principals, rules and quotas as a file that `deltamq apply` takes."""
    with Admin(url, patience=LONG_PATIENCE, **access) as admin:
        if drift:
            return _print_drift(admin.applied(), as_json=as_json)
        found = _present(admin, Desired(), prune=True)
    print_json(found) if as_json else click.echo(to_toml(found), nl=False)
    return 0


def _print_drift(answer: AppliedAnswer, *, as_json: bool) -> int:
    if as_json:
        print_json(answer)
    elif answer.applied_time is None:
        click.echo("nothing was applied yet: deltamq apply PATH")
    else:
        by = f" by {answer.applied_by}" if answer.applied_by else ""
        when = answer.applied_time.isoformat(timespec="seconds")
        number = len(answer.differences)
        differences = "1 difference" if number == 1 else f"{number:,} differences"
        click.echo(f"{differences} from {answer.names:,} names, last applied {when}{by}")
        rows = [
            (one.kind, one.name, one.state, field, _text(its.applied), _text(its.present))
            for one in answer.differences
            for field, its in (one.fields or {"": DifferingField(applied=None, present=None)}).items()
        ]
        print_table(("what", "name", "", "field", "applied", "now"), rows)
    return int(bool(answer.differences))


def _text(value: object) -> str:
    """Return a value of a setting as text."""
    return "-" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _present(admin: Admin, wanted: Desired, *, prune: bool) -> Desired:
    """Return what there is of what is wanted, or with `prune` of everything; a service may have no principals."""
    only = None if prune else wanted
    if not (prune or wanted.principals):
        return present(admin, only=only, principals=False)
    try:
        return present(admin, only=only)
    except Conflict as error:
        if error.code != "auth_off" or wanted.principals:
            raise
        return present(admin, only=only, principals=False)


def _print(changes: list[Change], impossible: list[Change]) -> None:
    if not changes:
        click.echo("nothing to change")
        return
    rows = [(change.does, change.kind, change.name, _said(change)) for change in changes]
    print_table(("", "what", "name", "settings"), rows)
    for change in impossible:
        click.echo(f"refused: {last_administrator(change.name).detail}")


def _said(change: Change) -> str:
    def shown(field: str) -> str:
        before, after = (_text(one) if isinstance(one, msgspec.Struct) else one for one in change.fields[field])
        return f"{field} {after}" if before is None else f"{field} {before} -> {after}"

    return ", ".join(map(shown, change.fields))
