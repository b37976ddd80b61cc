"""`make bench`: measure, print the table, write JSON.

make bench                      everything, in its shorter form
make bench ONLY=rest.arrow      some of it; several parts separated by commas
make bench QUICK=1              seconds instead of minutes: whether it works, not how fast
make bench LONG=1               up to a million commits and 1e8 messages
make bench PEERS=DIR            measure the peers in the same go and print the ratios
make bench AGAINST=COMMIT       measure that commit's tree and this one in turns and print the ratios
"""

from __future__ import annotations

import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from msgspec.structs import replace
from rich.console import Console

from tests.bench import console, store, store_calls, store_many
from tests.bench.against import compare
from tests.bench.effort import LONG, NORMAL, QUICK, Effort
from tests.bench.figure import Figure
from tests.bench.jobs import catalog, compact, merge, revive, revive_spark, sink, stream, verify
from tests.bench.jobs import typed as typed_by_spark
from tests.bench.kafka import door, freshness, java
from tests.bench.kafka import stream as stream_beside_kafka
from tests.bench.kafka import typed as typed_by_kafka
from tests.bench.log import append, disk, filters, flat, metadata, stored
from tests.bench.machine import commit_of, facts
from tests.bench.peers import PAIRS, Peers, Ratio, ratios
from tests.bench.registry import Bench, selected
from tests.bench.report import print_figures, print_ratios, write_json
from tests.bench.rest import (
    auth,
    cluster,
    event_loop,
    fetch,
    handover,
    keys,
    many,
    memory,
    pop,
    produce,
    static_topics,
    typed,
)
from tests.bench.session import Session

#: Modules register their benchmarks as they are imported.
_MODULES: Final = (
    *(append, disk, filters, flat, metadata, stored),
    console,
    store,
    store_calls,
    store_many,
    *(auth, cluster, event_loop, fetch, handover, keys, many, memory, pop, produce, static_topics, typed),
    *(door, freshness, java, stream_beside_kafka, typed_by_kafka),
    *(catalog, compact, merge, revive, revive_spark, sink, stream, typed_by_spark, verify),
)


@click.command(help="Measure DeltaMQ on this machine.")
@click.option("--only", default="", help="Names or beginnings of names, separated by commas.")
@click.option("--quick", is_flag=True, help="Seconds instead of minutes.")
@click.option("--long", "long_", is_flag=True, help="The full sizes: hours.")
@click.option("--peers", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The peers' scripts.")
@click.option("--wait", type=click.FloatRange(min=0), help="Seconds to wait before a window for a quiet machine.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out"), help="Where data and results go.")
@click.option("--against", metavar="COMMIT", help="Measure that commit's tree, too, in turns, and print the ratios.")
@click.option("--pairs", type=click.IntRange(min=1), default=3, show_default=True, help="Windows in each tree.")
@click.option("--list", "list_", is_flag=True, help="Print the names and end.")
def main(
    only: str,
    quick: bool,
    long_: bool,
    peers: Path | None,
    wait: float | None,
    out: Path,
    against: str | None,
    pairs: int,
    list_: bool,
) -> None:
    """Run what was asked for."""
    benches = selected([part for part in only.split(",") if part])
    if list_ or not benches:
        click.echo("\n".join(benches or selected([])))
        sys.exit(0 if benches else 2)
    effort = QUICK if quick else LONG if long_ else NORMAL
    if wait is not None:
        effort = replace(effort, quiet_s=wait)
    console = Console(width=None if sys.stdout.isatty() else 180)
    if against:
        flags = ["--quick"] if quick else ["--long"] if long_ else []
        flags += [] if wait is None else ["--wait", str(wait)]
        sys.exit(1 if compare(against, list(benches), pairs, flags, out.absolute(), console) else 0)
    # A part of the benchmarks seldom wants more than half of what all do.
    _check_space(out, effort, effort.disk_gib / 2 if only else effort.disk_gib)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    data = out.absolute() / f"bench-data-{stamp}"
    compared = Peers(peers, console.log, effort) if peers else None
    session = Session(effort, data, console.log, compared)
    about = {"time": stamp, "effort": effort.name, "commit": commit_of(Path.cwd()), **facts(out.absolute())}
    figures: list[Figure] = []
    found: list[Ratio] = []
    failed = 0
    try:
        for name, function in benches.items():
            failed += not _ran(name, function, session, figures)
        if compared is not None:
            measured = {f.name for f in figures}
            found = ratios(figures, compared.measure([p for p in PAIRS if p.ours in measured]))
    finally:
        print_figures(console, figures)
        print_ratios(console, found)
        path = out / f"bench-{stamp}.json"
        write_json(path, about, figures, found)
        console.print(f"written to {path}")
        session.close()
    if failed:
        raise click.ClickException(f"{failed} benchmarks failed; see above")


def _ran(name: str, function: Bench, session: Session, figures: list[Figure]) -> bool:
    """Run one benchmark; False when it failed: what the others measured is worth having."""
    began = time.monotonic()
    try:
        figures += function(session)
    except Exception as error:
        session.say(f"{name} FAILED: {error!r}")
        return False
    session.say(f"{name} done in {time.monotonic() - began:.0f} s")
    session.make_room()
    return True


def _check_space(out: Path, effort: Effort, wanted_gib: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free / 2**30
    if free < wanted_gib:
        raise click.ClickException(f"{out}: {free:.0f} GiB free; a {effort.name} run wants {wanted_gib:.0f} GiB")


if __name__ == "__main__":
    main()
