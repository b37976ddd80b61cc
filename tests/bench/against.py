"""`make bench AGAINST=COMMIT`: the same benchmarks in two trees, in turns, and their ratios.

    before   a worktree of COMMIT below out/against, with an environment and benchmarks of its own
    now      this tree

Windows of one benchmark alternate (before, now, now, before, ...), then those of the next: the speed of a machine
varies within minutes by more than most changes gain. What both trees measure under one name is compared: the median of
the ratios of the pairs, and their range. The exit code is 1 if a figure is slower in every pair.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench.machine import git
from tests.bench.report import number

__all__ = ["Compared", "compare", "compared"]

#: The medians of one window by figure, before and now.
Window: TypeAlias = tuple[Mapping[str, float], Mapping[str, float]]
_TIMES: Final = ("s", "ms", "us", "ns")


class Compared(msgspec.Struct, frozen=True):
    """One figure in both trees, a pair of medians for each pair of windows."""

    name: str
    unit: str
    pairs: Sequence[tuple[float, float]]

    @property
    def ratios(self) -> list[float]:
        """What is there now, divided by what was before, of each pair."""
        return [now / before for before, now in self.pairs]

    @property
    def is_slower(self) -> bool:
        """Whether all pairs say so, by more than a twentieth; times are better when they are less."""
        if self.unit.split("/")[0] in _TIMES:
            return min(self.ratios) > 1.05
        return max(self.ratios) < 0.95


def compared(
    windows: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], units: Mapping[str, str]
) -> list[Compared]:
    """Return the figures that every window of both trees has; a window is the medians by name, before and now."""
    names = [name for name in units if all(name in before and name in now for before, now in windows)]
    return [
        Compared(name, units[name], [(before[name], now[name]) for before, now in windows])
        for name in names
        if all(before[name] for before, _ in windows)
    ]


def compare(commit: str, names: Sequence[str], pairs: int, flags: Sequence[str], out: Path, console: Console) -> int:
    """Run these benchmarks in both trees, print the table, and return how many figures are slower in all pairs."""
    here, there = Path.cwd(), _worktree(commit, out, console)
    found: list[Compared] = []
    for name in names:
        found += _compared_of(name, there, here, pairs, flags, out / "against-runs", console)
    _print(console, found, commit)
    return sum(one.is_slower for one in found)


def _compared_of(
    name: str, there: Path, here: Path, pairs: int, flags: Sequence[str], out: Path, console: Console
) -> list[Compared]:
    """Run one benchmark in both trees; what it measures, or nothing if it cannot be run in one of them."""
    windows: list[Window] = []
    units: dict[str, str] = {}

    def run(tree: Path) -> Mapping[str, float]:
        figures = _figures(tree, ["--only", name, *flags], out)
        units.update({figure["name"]: figure["unit"] for figure in figures})
        return {figure["name"]: figure["median"] for figure in figures}

    for pair in range(pairs):
        console.print(f"{name}: pair {pair + 1} of {pairs}")
        try:
            windows.append(_in_turns(pair, run, there, here))
        except click.ClickException as error:
            console.print(f"{name} is left out: {error.message}")
            return []
    return compared(windows, units)


def _in_turns(pair: int, run: Callable[[Path], Mapping[str, float]], there: Path, here: Path) -> Window:
    """Run a window in each tree; every other pair begins with this one."""
    if pair % 2:
        now = run(here)
        return run(there), now
    before = run(there)
    return before, run(here)


def _worktree(commit: str, out: Path, console: Console) -> Path:
    name = _git("rev-parse", "--short=12", f"{commit}^{{commit}}")
    tree = out.absolute() / "against" / name
    if not tree.exists():
        console.print(f"a tree of {name} is made in {tree}")
        _git("worktree", "add", "--detach", str(tree), name)
        jars = Path(".jars").absolute()
        if jars.exists():
            (tree / ".jars").symlink_to(jars)
    subprocess.run(["make", "--quiet", "setup", "classes"], cwd=tree, check=True)
    return tree


def _git(*arguments: str) -> str:
    try:
        return git(Path.cwd(), *arguments)
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"git {' '.join(arguments)}: {error.stderr.strip()}") from error


def _figures(tree: Path, flags: Sequence[str], out: Path) -> list[dict[str, Any]]:
    known = set(out.glob("bench-*.json"))
    python = tree / ".venv/bin/python" if tree != Path.cwd() else Path(sys.executable)
    log = out / "log.txt"
    out.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        command = [str(python), "-m", "tests.bench", *flags, "--out", str(out)]
        done = subprocess.run(command, cwd=tree, stdout=file, stderr=file, check=False)
    written = sorted(set(out.glob("bench-*.json")) - known)
    if done.returncode or not written:
        raise click.ClickException(f"{tree}: the benchmarks failed; see {log}")
    return list(json.loads(written[-1].read_text())["figures"])


def _print(console: Console, found: Sequence[Compared], commit: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"now / {commit}: medians of {len(found[0].pairs) if found else 0} pairs")
    for name in ("figure", "before", "now", "ratio", "least - greatest", ""):
        table.add_column(name, justify="left" if name in ("figure", "") else "right", no_wrap=True)
    for one in found:
        before, now = (statistics.median(values) for values in zip(*one.pairs, strict=True))
        low, high = min(one.ratios), max(one.ratios)
        verdict = "[bold red]slower[/]" if one.is_slower else ""
        ratio, unit = statistics.median(one.ratios), one.unit
        cells = (f"{number(before)} {unit}", f"{number(now)} {unit}", f"{ratio:.2f}", f"{low:.2f} - {high:.2f}")
        table.add_row(one.name, *cells, verdict)
    console.print(table)
