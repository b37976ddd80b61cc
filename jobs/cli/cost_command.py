"""`deltamq cost`: the calls of a service's object store, and what they cost by a price list (SPEC LOOK-22)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import Final

import click
import msgspec

from deltamq.jobs.cli.options import errors_shown
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.console import PATIENCE, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.errors import DeltaMQError, NotFound, Refused
from deltamq.mq.prices import SECONDS_A_MONTH, STORE_OPERATIONS, Calls, Prices, gib_put, price_list_of
from deltamq.mq.wire.cluster import StoreOperation, StoreUse
from deltamq.tables.prices import price_lists

_GIB: Final = 1 << 30
_USUAL: Final = "s3-standard"


class OperationCost(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one kind since the start, and a month of them at the present rate."""

    operation: str
    requests: int
    bytes: int
    requests_per_s: float
    dollars_a_month: float


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What calls cost; `processes` are those that were asked, `not_asked` those that did not answer, and why."""

    warehouse: str | None
    prices: str
    day: date
    source: str
    processes: tuple[str, ...]
    not_asked: Mapping[str, str]
    operations: tuple[OperationCost, ...]
    dollars_a_month: float
    gib_put: float
    dollars_a_gib: float | None
    #: What a GiB costs for each month that it is kept.
    dollars_a_gib_month: float


@click.command(name="cost")
@click.option("--prices", "named", metavar="NAME", help="A list of conf/prices.toml; default: by the warehouse's URL.")
@click.option(
    "--calls", multiple=True, metavar="OPERATION=NUMBER", help="Instead of a service's calls: so many in a month."
)
@click.option("--gib", type=click.FloatRange(min=0), default=0.0, help="With --calls: the GiB put in the month.")
@service_options
def cost_command(
    named: str | None, calls: Sequence[str], gib: float, url: str, access: ClientAccess, as_json: bool
) -> None:
    """Show the calls of the service's object store by kind, and what they cost a month and a GiB."""
    with errors_shown():
        cost = _of_month(calls, gib, named) if calls else _of_service(url, access, named)
    print_json(cost) if as_json else _print(cost)


def _of_month(given: Sequence[str], gib: float, named: str | None) -> Cost:
    """Return what a month with these calls costs."""
    requests = dict.fromkeys(STORE_OPERATIONS, 0)
    for text in given:
        operation, _, number = text.partition("=")
        if operation not in requests or not number.isdigit():
            kinds = ", ".join(STORE_OPERATIONS)
            raise Refused(f"--calls: give a kind ({kinds}) and a number, such as put=5000000, not {text!r}")
        requests[operation] += int(number)
    nbytes = {"put": int(gib * _GIB)}
    calls = {name: Calls(number, nbytes.get(name, 0)) for name, number in requests.items()}
    rates = {name: (done.requests / SECONDS_A_MONTH, done.bytes / SECONDS_A_MONTH) for name, done in calls.items()}
    return _cost(None, named or _USUAL, (), {}, calls, rates)


def _of_service(url: str, access: ClientAccess, named: str | None) -> Cost:
    """Return what all processes of the service asked of the store."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.cluster()
    uses: dict[str, StoreUse] = {} if info.store is None else {info.host or url: info.store}
    not_asked: dict[str, str] = {}
    for host in info.hosts:
        if host.host == info.host or info.store is None:
            continue
        try:
            with Admin(host.address, patience=PATIENCE, **access) as admin:
                used = admin.cluster().store
        except DeltaMQError as error:
            not_asked[host.address] = error.detail
        else:
            uses |= {} if used is None else {host.host: used}
    name = named or price_list_of(info.warehouse)
    if not uses or name is None:
        raise NotFound(f"{info.warehouse} is on a disk: its calls cost nothing, and nobody counts them")
    calls = {operation: _sum(uses.values(), operation) for operation in STORE_OPERATIONS}
    rates = {operation: _rate(uses.values(), operation) for operation in STORE_OPERATIONS}
    return _cost(info.warehouse, name, tuple(uses), not_asked, calls, rates)


def _done(operations: Sequence[StoreOperation], operation: str) -> Calls:
    """Return the calls of one kind; none if a process of another release does not count them."""
    return next((Calls(one.requests, one.bytes) for one in operations if one.operation == operation), Calls())


def _sum(uses: Collection[StoreUse], operation: str) -> Calls:
    each = [_done(use.operations, operation) for use in uses]
    return Calls(sum(done.requests for done in each), sum(done.bytes for done in each))


def _rate(uses: Collection[StoreUse], operation: str) -> tuple[float, float]:
    """Return requests and bytes a second, of all processes, in their last minutes."""
    each = [(_done(use.recent, operation), max(use.recent_seconds, 1.0)) for use in uses]
    return sum(done.requests / seconds for done, seconds in each), sum(done.bytes / seconds for done, seconds in each)


def _cost(
    warehouse: str | None,
    name: str,
    processes: tuple[str, ...],
    not_asked: Mapping[str, str],
    calls: Mapping[str, Calls],
    rates: Mapping[str, tuple[float, float]],
) -> Cost:
    prices = _prices(name)
    operations = tuple(
        OperationCost(
            operation=operation,
            requests=done.requests,
            bytes=done.bytes,
            requests_per_s=rates[operation][0],
            dollars_a_month=prices.of({operation: _month(*rates[operation])}),
        )
        for operation, done in calls.items()
    )
    written = gib_put(calls)
    return Cost(
        warehouse=warehouse,
        prices=name,
        day=prices.day,
        source=prices.source,
        processes=processes,
        not_asked=not_asked,
        operations=operations,
        dollars_a_month=sum(one.dollars_a_month for one in operations),
        gib_put=written,
        dollars_a_gib=prices.of(calls) / written if written else None,
        dollars_a_gib_month=prices.gib_month,
    )


def _month(requests_per_s: float, bytes_per_s: float) -> Calls:
    return Calls(round(requests_per_s * SECONDS_A_MONTH), round(bytes_per_s * SECONDS_A_MONTH))


def _prices(name: str) -> Prices:
    lists = price_lists()
    if (prices := lists.get(name)) is None:
        known = ", ".join(sorted(lists)) or "none, since there is no conf/prices.toml"
        raise Refused(f"--prices: {name} is no price list; there are {known}", field="prices")
    return prices


def _print(cost: Cost) -> None:
    count = len(cost.processes)
    where = "" if cost.warehouse is None else f"{cost.warehouse}, {count} process{'es' if count > 1 else ''}: "
    click.echo(f"{where}prices of {cost.prices}, {cost.source} of {cost.day}")
    for address, detail in cost.not_asked.items():
        click.echo(f"not counted: {address}: {detail}", err=True)
    rows = [
        (
            one.operation,
            f"{one.requests:,}",
            f"{one.bytes / _GIB:,.3f}",
            f"{one.requests_per_s:,.1f}",
            f"{one.dollars_a_month:,.2f}",
        )
        for one in cost.operations
    ]
    heads = ("operation", "calls", "GiB", "calls/s now", "$ a month")
    print_table(heads, rows, right=heads[1:])
    gib = "nothing was put yet" if cost.dollars_a_gib is None else f"${cost.dollars_a_gib:,.4f} for each GiB put so far"
    click.echo(
        f"${cost.dollars_a_month:,.2f} a month at this rate; {gib}; ${cost.dollars_a_gib_month} a GiB and month kept"
    )
