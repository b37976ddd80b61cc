"""`deltamq audit`: what administrators did, and what was refused (SPEC SEC-42)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import click

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.auth_admin import ActInfo, RefusalInfo
from deltamq.mq.client.cli.console import PATIENCE, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess

_TIMES: Final = click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"])


@click.command("audit")
@click.option("--since", type=_TIMES, help="From this time on, with a time zone: 2030-05-01T12:00:00Z.")
@click.option("--principal", help="Only of this principal.")
@click.option(
    "--max", "limit", type=click.IntRange(1), default=100, show_default=True, help="Print at most this number."
)
@click.option("--refusals", is_flag=True, help="Print what was refused, by minute, instead of what was done.")
@service_options
def audit(
    since: datetime | None,
    principal: str | None,
    limit: int,
    refusals: bool,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print who did what, the oldest first; with --json one object a line, with what was before and after."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        counted = admin.audit_refusals(since=since, principal=principal, limit=limit) if refusals else ()
        acts = () if refusals else admin.audit(since=since, principal=principal, limit=limit)
        if as_json:
            for one in (*counted, *acts):
                print_json(one)
        elif refusals:
            _print_refusals(counted)
        else:
            _print_acts(acts)


def _print_acts(acts: Iterable[ActInfo]) -> None:
    columns = ("time", "principal", "from", "call", "resource", "name", "outcome", "code")
    rows = [(_time(o.time), o.principal, o.address, o.call, o.resource, o.name, o.outcome, o.code or "") for o in acts]
    print_table(columns, rows)


def _print_refusals(refusals: Iterable[RefusalInfo]) -> None:
    columns = ("minute", "principal", "call", "status", "code", "count", "last from")
    rows = [(_time(o.minute), o.principal, o.call, str(o.status), o.code, o.count, o.address) for o in refusals]
    print_table(columns, rows, right=("count",))


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
