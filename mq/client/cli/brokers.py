"""`deltamq broker show|set`: what may be read from and written to a broker, or one partition (SPEC ROUTE-9)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from deltamq.mq.client.admin.admin import AccessInfo, Admin, BrokerInfo
from deltamq.mq.client.cli.console import PATIENCE, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.errors import NotFound


@click.group()
def broker() -> None:
    """Show brokers; close them for writes or reads, and open them again."""


@broker.command()
@click.argument("name", required=False)
@service_options
def show(name: str | None, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print what is allowed at broker NAME, or at all brokers."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        brokers = [one for one in admin.cluster().brokers if name in (None, one.broker)]
    if name is not None and not brokers:
        raise NotFound(f"there is no broker {name}", code="broker_not_found", field="broker")
    if as_json:
        print_json({"brokers": brokers})
    else:
        _print_brokers(brokers)


def _print_brokers(brokers: Sequence[BrokerInfo]) -> None:
    rows = [
        (one.broker, one.partitions, _yes(one.readable), _yes(one.writable), _time(one.until), one.reason or "-")
        for one in brokers
    ]
    print_table(("broker", "partitions", "readable", "writable", "until", "reason"), rows, right=("partitions",))


@broker.command("set")
@click.argument("name")
@click.option("--readable/--not-readable", default=True, show_default=True, help="Whether messages may be read.")
@click.option("--writable/--not-writable", default=True, show_default=True, help="Whether messages may be sent.")
@click.option("--reason", default="", help="Why, for those who are refused.")
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
            found = admin.set_broker_access(name, readable=readable, writable=writable, reason=reason, until=until)
        else:
            what = partition
            found = admin.set_partition_access(
                topic, partition, readable=readable, writable=writable, reason=reason, until=until
            )
    if as_json:
        print_json(found)
    else:
        click.echo(f"{what}: {_line(found)}")


def _line(access: AccessInfo) -> str:
    ends = "" if access.until is None else f", until {_time(access.until)}"
    why = f" ({access.reason})" if access.reason else ""
    return f"readable {_yes(access.readable)}, writable {_yes(access.writable)}{ends}{why}"


def _yes(allowed: bool) -> str:
    return "yes" if allowed else "NO"


def _time(moment: datetime | None) -> str:
    return "-" if moment is None else moment.isoformat(timespec="seconds")
