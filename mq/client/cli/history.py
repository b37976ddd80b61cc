"""`deltamq history` and `group watch`: lag, rates and other gauges over time (SPEC CONS-13)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import click

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.console import PATIENCE, print_again, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.history import METRICS
from deltamq.mq.wire.cluster import HistorySeries
from deltamq.mq.wire.groups import GroupInfo

_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 40


@click.command()
@click.argument("metric", type=click.Choice(METRICS))
@click.option("--group", help="Only this group.")
@click.option("--topic", help="Only this topic.")
@click.option("--minutes", type=click.IntRange(1, 1_440), default=60, show_default=True, help="How far back.")
@service_options
def history(
    metric: str, group: str | None, topic: str | None, minutes: int, url: str, access: ClientAccess, as_json: bool
) -> None:
    """Show METRIC over the last minutes; sent, sent_bytes and consumed are rates a second."""
    since = datetime.now(UTC) - timedelta(minutes=minutes)
    with Admin(url, patience=PATIENCE, **access) as admin:
        found = admin.history(metric, group=group, topic=topic, since=since)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo(f"no samples of {metric} yet: the service takes one every 15 seconds, of what it has seen")
        return
    rows = [_row(series) for series in found]
    print_table(("group", "topic", "lowest", "highest", "last", "time"), rows, right=("lowest", "highest", "last"))


@click.command()
@click.argument("name")
@click.option("--every", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between looks.")
@service_options
def watch(name: str, every: float, url: str, access: ClientAccess, as_json: bool) -> None:
    """Show how group NAME goes on, until Ctrl-C: lag by topic and over the last hour, rates, what clients hold."""
    with Admin(url, patience=PATIENCE, **access) as admin:

        def show() -> None:
            info = admin.get_group(name)
            if as_json:
                print_json(info)
            else:
                _print_group(info, admin.history("lag", group=name), admin.history("consumed", group=name))

        print_again(show, every, as_json=as_json)


def _print_group(info: GroupInfo, lags: Sequence[HistorySeries], rates: Sequence[HistorySeries]) -> None:
    stands = "" if info.paused is None else f", paused: {info.paused.reason}"
    click.echo(f"{info.group}: lag {info.lag:,}, {len(info.clients)} clients{stands}")
    over_time = {one.labels.get("topic"): [value for _, value in one.points] for one in lags}
    last_rate = {one.labels.get("topic"): one.points[-1][1] for one in rates}
    rows = []
    for topic in info.topics:
        held = sum(partition.in_flight or 0 for partition in topic.partitions)
        rate = last_rate.get(topic.topic)
        shown = "-" if rate is None else f"{rate:,.1f}"
        rows.append((topic.topic, topic.lag, held, shown, sparkline(over_time.get(topic.topic, ()))))
    print_table(("topic", "lag", "in flight", "consumed/s", "lag, last hour"), rows, right=("lag", "in flight"))


def _row(series: HistorySeries) -> tuple[object, ...]:
    values = [value for _, value in series.points]
    numbers = tuple(f"{number:,.10g}" for number in (min(values), max(values), values[-1]))
    return series.labels.get("group", "-"), series.labels.get("topic", "-"), *numbers, sparkline(values)


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars of one line, the lowest value as the lowest bar; at most 40, each the highest of a part."""
    if not values:
        return ""
    parts = min(_WIDTH, len(values))
    edges = [len(values) * part // parts for part in range(parts + 1)]
    tops = [max(values[low:high]) for low, high in pairwise(edges)]
    low, high = min(tops), max(tops)
    scale = (len(_HEIGHTS) - 1) / (high - low) if high > low else 0
    return "".join(_HEIGHTS[round((top - low) * scale)] for top in tops)
