"""`deltamq history`: lag, rates and other gauges over the last day, a line for each group or topic (SPEC CONS-13)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import click

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.console import PATIENCE, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.history import METRICS
from deltamq.mq.wire.cluster import HistorySeries

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


def _row(series: HistorySeries) -> tuple[object, ...]:
    values = [value for _, value in series.points]
    numbers = tuple(f"{number:,.10g}" for number in (min(values), max(values), values[-1]))
    return series.labels.get("group", "-"), series.labels.get("topic", "-"), *numbers, sparkline(values)


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars of one line, the lowest value as the lowest bar; at most 40, each the highest of a part."""
    parts = min(_WIDTH, len(values))
    edges = [len(values) * part // parts for part in range(parts + 1)]
    tops = [max(values[low:high]) for low, high in pairwise(edges)]
    low, high = min(tops), max(tops)
    scale = (len(_HEIGHTS) - 1) / (high - low) if high > low else 0
    return "".join(_HEIGHTS[round((top - low) * scale)] for top in tops)
