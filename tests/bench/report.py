"""The table on the screen and the JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench.figure import Figure
from tests.bench.machine import QUIET_PERCENT
from tests.bench.peers import Ratio

__all__ = ["number", "print_figures", "print_ratios", "write_json"]

_VERDICTS: Final = {None: "", True: "[green]met[/]", False: "[bold red]missed[/]"}


def number(value: float) -> str:
    """Three or so digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'≥' if figure.target.least else '≤'} {number(figure.target.bound)}"


def _noise(figure: Figure) -> str:
    others = figure.extra.get("others")
    return f" [yellow](others used {others:.0f} %)[/]" if isinstance(others, float) and others > QUIET_PERCENT else ""


def print_figures(console: Console, figures: Sequence[Figure]) -> None:
    """One row for each figure."""
    table = Table(box=box.SIMPLE_HEAD, title="DeltaMQ benchmarks: median (least - greatest) of the repeats")
    table.add_column("figure", no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("least - greatest", justify="right", no_wrap=True)
    table.add_column("n", justify="right")
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("what was measured", ratio=1)
    for f in figures:
        table.add_row(
            f.name,
            f"{number(f.median)} {f.unit}",
            f"{number(min(f.samples))} - {number(max(f.samples))}",
            str(len(f.samples)),
            _target(f),
            _VERDICTS[f.met],
            f.what + _noise(f),
        )
    console.print(table)


def print_ratios(console: Console, found: Sequence[Ratio]) -> None:
    """One row for each pair of figures."""
    if not found:
        return
    table = Table(box=box.SIMPLE_HEAD, title="Side by side: ours divided by theirs (times: less is better)")
    for name in ("figure", "ours", "peer", "theirs", "ratio", "wanted", ""):
        table.add_column(name, justify="left" if name in ("figure", "peer", "") else "right", no_wrap=True)
    for r in found:
        wanted = "" if r.pair.wanted is None else f"≥ {r.pair.wanted:g}"
        peer = f"{r.pair.peer} {r.pair.measure}, {r.pair.size:,} B"
        table.add_row(r.pair.ours, number(r.ours), peer, number(r.theirs), f"{r.value:.2f}", wanted, _VERDICTS[r.met])
    console.print(table)


def write_json(path: Path, facts: dict[str, object], figures: Sequence[Figure], found: Sequence[Ratio]) -> None:
    """Everything that a later comparison needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {**facts, "figures": [f.to_json() for f in figures], "ratios": [r.to_json() for r in found]}
    path.write_text(json.dumps(body, indent=1, allow_nan=True) + "\n")
