"""`deltamq cluster`: the service processes of a warehouse, and which of them serves which broker."""

from __future__ import annotations

import click

from mq.client.admin import Admin, ClusterInfo
from mq.client.cli.console import PATIENCE, print_json, print_table, service_options
from mq.client.cli.missing_jobs import missing_jobs_line
from mq.client.http import ClientAccess

__all__ = ["cluster"]


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
