"""`deltamq cluster`, `settings`, `broker show|set` and `upgrade`: processes, their settings, brokers and features.

`broker set` opens and closes a broker, or one partition, for reads and writes (SPEC ROUTE-9). Commands that people run
when messages do not come warn of jobs that the queue needs and that run nowhere (SPEC RETRY-7).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import click

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.console import PATIENCE, print_json, print_table, service_options, watchable
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.mq.wire.answers import AccessInfo
from deltamq.mq.wire.cluster import BrokerInfo, ClusterInfo, UpgradeInfo

_GIB: Final = 1 << 30


def warn_of_missing_jobs(url: str, access: ClientAccess) -> None:
    """Write one line to stderr if jobs are missing; errors of the service are ignored."""
    with suppress(DeltaMQError), Admin(url, patience=PATIENCE, **access) as admin:
        line = missing_jobs_line(admin.cluster())
        if line is not None:
            click.echo(f"warning: {line}", err=True)


def missing_jobs_line(info: ClusterInfo) -> str | None:
    """Return which jobs do not run, what that means and what to do; None if all jobs run."""
    if not info.missing_jobs:
        return None
    names = " and ".join(job.job for job in info.missing_jobs)
    means = ", and ".join(job.means for job in info.missing_jobs)
    verb = "runs" if len(info.missing_jobs) == 1 else "run"
    return f"no job {names} {verb} on {info.warehouse}: {means}. Start `deltamq jobs run --warehouse {info.warehouse}`"


def full_disk_line(info: ClusterInfo) -> str | None:
    """Return how much of the warehouse's disk is free if that is little; None otherwise."""
    if info.disk is None or not info.disk.is_nearly_full:
        return None
    free, size = (amount / _GIB for amount in (info.disk.free_bytes, info.disk.size_bytes))
    return f"the disk of {info.warehouse} is nearly full: {free:,.1f} of {size:,.1f} GiB are free"


@click.command()
@service_options
@watchable
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
    if (line := full_disk_line(info)) is not None:
        click.echo(line)
    rows = [
        (
            b.broker,
            b.address or "-",
            " ".join(b.roles),
            b.epoch,
            b.partitions,
            "yes" if b.online else "no process serves it now",
        )
        for b in info.brokers
    ]
    print_table(("broker", "served at", "roles", "epoch", "partitions", "online"), rows, right=("epoch", "partitions"))


@click.command()
@click.option("--plan", is_flag=True, help="Only say what would be switched on, and which processes lack what.")
@service_options
def upgrade(plan: bool, url: str, access: ClientAccess, as_json: bool) -> None:
    """Switch on the features that every process of the cluster knows; after that, older releases do not start."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.upgrade_state() if plan else admin.switch_on_features()
    print_json(info) if as_json else _print_upgrade(info, plan=plan)


def _print_upgrade(info: UpgradeInfo, *, plan: bool) -> None:
    for feature in info.on:
        click.echo(f"on: {feature.feature}: {feature.says}")
    for feature in info.ready:
        click.echo(f"ready: {feature.feature}: {feature.says}")
    for feature in info.waiting:
        lacking = ", ".join(feature.lacking)
        click.echo(f"waits: {feature.feature}: not known to {lacking}: restart these with the new release")
    if info.ready and plan:
        click.echo("without --plan, what is ready is switched on; older releases then refuse to start")
    elif not info.ready and not info.waiting:
        click.echo("every feature that this release knows is on")


@click.command()
@click.option("--all", "show_all", is_flag=True, help="Also the settings that are as they are by default.")
@service_options
def settings(show_all: bool, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the settings of the process that answers, and where each was given."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        shown = [one for one in admin.settings() if show_all or one.differs]
    if as_json:
        print_json(shown)
        return
    if not shown:
        click.echo("every setting is as it is by default; --all prints them")
        return
    rows = [(one.name, _json(one.value), _json(one.default), one.source) for one in shown]
    print_table(("setting", "value", "default", "given in"), rows)


@click.command("log-level")
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--logger", default="deltamq", show_default=True, help="This logger, and those below it.")
@service_options
def log_level(level: Any, logger: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Change what the process that answers logs, from LEVEL on, until it ends."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.set_log_level(level, logger=logger)
    print_json(info) if as_json else click.echo(f"{info.logger} logs from {info.level} on")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@click.group()
def broker() -> None:
    """Show brokers; close them for writes or reads, and open them again."""


@broker.command()
@click.argument("name", required=False)
@service_options
def show(name: str | None, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print what is allowed at broker NAME, or at all brokers."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        brokers = [b for b in admin.cluster().brokers if name in (None, b.broker)]
    if name is not None and not brokers:
        raise NotFound(f"there is no broker {name}", code="broker_not_found", field="broker")
    if as_json:
        print_json({"brokers": brokers})
    else:
        _print_brokers(brokers)


def _print_brokers(brokers: Sequence[BrokerInfo]) -> None:
    rows = [
        (b.broker, b.partitions, _yes(b.readable), _yes(b.writable), _time(b.until), b.reason or "-") for b in brokers
    ]
    print_table(("broker", "partitions", "readable", "writable", "until", "reason"), rows, right=("partitions",))


@broker.command("set")
@click.argument("name")
@click.option("--readable/--not-readable", default=True, show_default=True, help="Whether messages may be read.")
@click.option("--writable/--not-writable", default=True, show_default=True, help="Whether messages may be sent.")
@click.option("--reason", default="", help="Why; clients that are refused see it.")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"]),
    help="When everything is allowed again by itself, with a time zone: 2026-05-01T12:00:00Z.",
)
@click.option("--topic", help="With --partition: the topic of the partition.")
@click.option("--partition", help="Only this physical partition, NAME@BROKER, which is at broker NAME.")
@service_options
def set_(
    name: str,
    readable: bool,
    writable: bool,
    reason: str,
    until: datetime | None,
    topic: str | None,
    partition: str | None,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Set what is allowed at broker NAME; without options everything is allowed again.

    A broker that is not writable gets no new messages, and its stored messages are still read: so it is drained before
    maintenance. Remap the logical queues of static topics away from it first.
    """
    if (topic is None) != (partition is None):
        raise click.UsageError("--topic and --partition go together")
    if partition is not None and not partition.endswith(f"@{name}"):
        raise click.UsageError(f"partition {partition} is not at broker {name}")
    with Admin(url, patience=PATIENCE, **access) as admin:
        if topic is None or partition is None:
            what = name
            info = admin.set_broker_access(name, readable=readable, writable=writable, reason=reason, until=until)
        else:
            what = partition
            info = admin.set_partition_access(
                topic, partition, readable=readable, writable=writable, reason=reason, until=until
            )
    if as_json:
        print_json(info)
    else:
        click.echo(f"{what}: {_line(info)}")


def _line(access: AccessInfo) -> str:
    ends = "" if access.until is None else f", until {_time(access.until)}"
    why = f" ({access.reason})" if access.reason else ""
    return f"readable {_yes(access.readable)}, writable {_yes(access.writable)}{ends}{why}"


def _yes(allowed: bool) -> str:
    return "yes" if allowed else "NO"


def _time(moment: datetime | None) -> str:
    return "-" if moment is None else moment.isoformat(timespec="seconds")
