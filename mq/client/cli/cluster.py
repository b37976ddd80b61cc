"""`deltamq cluster` and `deltamq upgrade`: the processes of a warehouse, and what all of them know."""

from __future__ import annotations

import click

from deltamq.mq.client.admin.admin import Admin, ClusterInfo, UpgradeInfo
from deltamq.mq.client.cli.console import PATIENCE, print_json, print_table, service_options
from deltamq.mq.client.cli.missing_jobs import missing_jobs_line
from deltamq.mq.client.http.calls import ClientAccess


@click.command()
@service_options
def cluster(url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the brokers, and the process that serves each of them."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.cluster()
    if as_json:
        print_json(info)
    else:
        _print_cluster(info)


def _print_cluster(info: ClusterInfo) -> None:
    processes = max(1, len(info.hosts))
    click.echo(
        f"{info.warehouse}: {processes} process{'es' if processes > 1 else ''}, {len(info.brokers)} brokers, "
        f"{info.topics:,} topics, routes epoch {info.routes_epoch}"
    )
    if info.auth is False:
        click.echo("without authentication: anyone who can reach it may read, write and delete; set service.auth")
    if (line := missing_jobs_line(info)) is not None:
        click.echo(line)
    for stopped in info.stopped:
        click.echo(f"stopped: {stopped.queue or stopped.partition} of {stopped.topic}: {stopped.detail}")
    rows = [
        (
            one.broker,
            one.address or "-",
            " ".join(one.roles),
            one.epoch,
            one.partitions,
            "yes" if one.online else "no process serves it now",
        )
        for one in info.brokers
    ]
    print_table(("broker", "served at", "roles", "epoch", "partitions", "online"), rows, right=("epoch", "partitions"))


@click.command()
@click.option("--apply", is_flag=True, help="Switch on what is ready; without it, only say what would be.")
@service_options
def upgrade(apply: bool, url: str, access: ClientAccess, as_json: bool) -> None:
    """Switch on the features that every process of the cluster knows; after that, older releases do not start."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        found = admin.switch_on_features() if apply else admin.upgrade_state()
    print_json(found) if as_json else _print_upgrade(found, apply=apply)


def _print_upgrade(found: UpgradeInfo, *, apply: bool) -> None:
    for one in found.on:
        click.echo(f"on: {one.feature}: {one.says}")
    for one in found.ready:
        click.echo(f"ready: {one.feature}: {one.says}")
    for one in found.waiting:
        click.echo(f"waits: {one.feature}: not known to {', '.join(one.lacking)}: restart these with the new release")
    if found.ready and not apply:
        click.echo("add --apply to switch on what is ready; older releases will then refuse to start")
    elif not found.ready and not found.waiting:
        click.echo("every feature that this release knows is on")
