"""The main job's output: a bar, a line for each look of Spark, the tables of the report, and commands to try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from deltamq.jobs.flights.agreement import Agreement, Line
from deltamq.jobs.flights.reading import Look
from deltamq.mq.wire.topics import TopicInfo

CAPTION: Final = (
    "gapless: every offset from 0 to the end, once; kept together: all events of an aircraft in one partition; "
    "in order: by offset as they were sent; checksum: the sum of the CRC-32 of each body"
)
GROUPS_CAPTION: Final = (
    "consumed: committed by the group; acknowledged: consumed and not a dead letter; delivered again: after a "
    "failure, or the death of the worker that held it; left over: not committed, in flight, or waiting for redelivery"
)

STREAMS_CAPTION: Final = (
    "flights: the typed table, one row for each event; hours: delays by carrier and hour, made of the typed table; "
    "minutes of delay: of departures; checksum: the sum of the CRC-32 of each hour of a carrier"
)


def bar(console: Console) -> Progress:
    """Return the producer's progress bar."""
    return Progress(
        TextColumn("producer"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f}/s  {task.fields[day]}"),
        TimeRemainingColumn(),
        console=console,
    )


def look_text(look: Look, *, asked: int, now: int, airlines: Mapping[str, str], groups: str) -> str:
    """Return Spark's view, the time of the look, and the producer's progress meanwhile."""
    busiest = ", ".join(f"{aircraft} {count:,}" for aircraft, count in look.busiest)
    delays = ", ".join(f"{airlines.get(carrier, carrier)} {delay:+.1f} min" for carrier, delay in look.delays)
    behind = max(0, now - look.messages)
    return (
        f"[bold]Spark SQL[/] finds [bold]{look.messages:,}[/] events; {asked:,} were acknowledged when it was asked, "
        f"and {look.seconds:.1f} s later the producer is {behind:,} ahead\n"
        f"  busiest aircraft  {escape(busiest)}\n"
        f"  longest delays    {escape(delays)}\n"
        f"  stream            {look.typed:,} events are typed\n"
        f"  groups            {escape(groups)}"
    )


def report_tables(agreement: Agreement, topic: str) -> tuple[Table, ...]:
    """Return the tables of the report: the topic, its groups, and its streams."""
    return (
        _table(
            f"{topic}: sent by the producer, returned by REST, found by Spark SQL",
            CAPTION,
            ("producer", "service", "Spark"),
            agreement.lines,
        ),
        _table(
            f"{topic} in two groups: expected, handled by workers, returned by REST, found by Spark SQL",
            GROUPS_CAPTION,
            ("producer", "workers", "service", "Spark"),
            agreement.groups,
        ),
        _table(
            f"{topic} in a stream: sent by the producer, typed, summed by carrier and hour",
            STREAMS_CAPTION,
            ("producer", "flights", "hours"),
            agreement.streams,
        ),
    )


def _table(title: str, caption: str, sides: Sequence[str], lines: Sequence[Line]) -> Table:
    """Groups have a column for their names, and are set apart."""
    table = Table(title=title, caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    grouped = any(line.group for line in lines)
    for _ in range(1 + grouped):
        table.add_column("")
    for side in sides:
        table.add_column(side, justify="right")
    table.add_column("agree", justify="center")
    shown = ""
    for line in lines:
        if shown and shown != line.group:
            table.add_section()
        names = [escape("" if shown == line.group else line.group), escape(line.what)][1 - grouped :]
        shown = line.group
        numbers = [getattr(line, side.lower()) for side in sides]
        table.add_row(*names, *numbers, "[green]yes[/]" if line.agree else "[bold red]NO[/]")
    return table


def next_steps(url: str, topic: TopicInfo, groups: Sequence[str], warehouse: str) -> str:
    """Return commands to try while the service keeps serving."""
    name, partition = topic.topic, topic.partitions[0]
    path = quote(partition.partition, safe="")
    return escape(
        f"""
Serving {url} until Ctrl-C. Try, in another terminal:

  console   {url}/
  REST      curl '{url}/v1/topics/{name}/partitions/{path}/messages?max_messages=2'
            curl {url}/v1/topics/{name}/messages -H 'content-type: application/json' \\
              -d '{{"messages": [{{"key": "N14228", "tag": "note", "body": "hello"}}]}}'
  CLI       .venv/bin/deltamq topic show {name} --url {url}
            .venv/bin/deltamq group show {groups[0]} --url {url}
            .venv/bin/deltamq dead-letters list {groups[-1]} --max 3 --url {url}
  Spark     .venv/bin/python
            >>> from deltamq.jobs.sql import spark_session
            >>> spark = spark_session(warehouse="{warehouse}")
            >>> spark.read.format("mq").option("topic", "{name}").load().groupBy("tag").count().show()
            >>> spark.read.format("delta").load("{partition.location}").orderBy("offset").show(3)
            >>> from deltamq.jobs.sql.views import register_views
            >>> from deltamq.tables.config import load
            >>> register_views(spark, load(overrides={{"warehouse.uri": "{warehouse}"}}))
            >>> spark.sql("SELECT reason, key, count(*) FROM mq_dead_letters GROUP BY reason, key").show()
"""
    )
