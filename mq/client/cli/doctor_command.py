"""`deltamq doctor`: check everything that DeltaMQ needs, and print what to do about each fault."""

from __future__ import annotations

from typing import Final

import click

from deltamq.mq.client.cli.console import print_json, service_options
from deltamq.mq.client.cli.doctor import Check, CheckOutcome, Subject, examine, installed_checkers
from deltamq.mq.client.http.calls import ClientAccess

_SIGNS: Final = {
    CheckOutcome.OK: ("ok", "green"),
    CheckOutcome.WARNING: ("warning", "yellow"),
    CheckOutcome.FAILED: ("FAILED", "red"),
}


@click.command()
@click.option("--warehouse", envvar="DELTAMQ_WAREHOUSE_URI", help="The tables' folder or URL; default: the profile's.")
@click.option("--profile", envvar="DELTAMQ_PROFILE", default="local", show_default=True, help="conf/<profile>.toml")
@service_options
def doctor(warehouse: str | None, profile: str, url: str, access: ClientAccess, as_json: bool) -> int:
    """Check Java, jars, warehouse and service; exits 1 if something does not work."""
    checks = []
    for check in examine(Subject(url=url, warehouse=warehouse, profile=profile, access=access), installed_checkers()):
        checks.append(check)
        if not as_json:
            _print(check)
    failed = sum(check.health is CheckOutcome.FAILED for check in checks)
    if as_json:
        print_json({"ok": failed == 0, "checks": checks})
    return 1 if failed else 0


def _print(check: Check) -> None:
    word, colour = _SIGNS[check.health]
    click.echo(f"{click.style(f'{word:>8}', fg=colour)}  {check.name}: {check.detail}")
    if check.remedy is not None:
        click.echo(f"{'':>8}  -> {check.remedy}")
