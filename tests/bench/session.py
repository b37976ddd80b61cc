"""One go of the benchmarks: fresh folders, repeated windows, figures.

Every benchmark writes into a folder that nobody used before. Only its large files are deleted when it has ended, all
others at the end of the go: ext4 does not hand out an inode for minutes after it was freed and looks past every such
inode when a file is created, so that creating files costs up to 20 times as much next to a folder with many that was
just removed. Wait some minutes between two goes if the first one stored millions of files.
"""

from __future__ import annotations

import gc
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from tests.bench.effort import Effort
from tests.bench.figure import Figure
from tests.bench.machine import QUIET_PERCENT, Gauge, wait_until_quiet
from tests.bench.peers import Peers
from tests.bench.targets import TARGETS

__all__ = ["Session", "Window"]

#: A minute of large batches stores tens of gigabytes, in a few files.
_LARGE_BYTES: Final = 1 << 20
#: The values of one window by name; `others` and `stolen` are added: percent of the machine.
Window = Mapping[str, float]


class Session:
    """What a benchmark needs to know and to have."""

    def __init__(self, effort: Effort, folder: Path, say: Callable[[str], None], peers: Peers | None = None) -> None:
        self.effort = effort
        self.peers = peers
        self.folder = folder
        self.say = say
        self._folders = 0
        folder.mkdir(parents=True)

    def fresh(self, name: str) -> Path:
        """A folder of its own."""
        self._folders += 1
        path = self.folder / f"{self._folders:03d}-{name}"
        path.mkdir()
        return path

    def make_room(self) -> None:
        """Delete what a benchmark stored in large files."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_size >= _LARGE_BYTES:
                path.unlink()

    def windows(
        self, measure: Callable[[float], Mapping[str, float]], *, warmups: int = 1, times: float = 1, most: int = 99
    ) -> list[Window]:
        """Warm up, then call `measure(seconds)` for each window; windows that others disturbed are measured again.

        As many again as were wanted are tried at most; of all, the least disturbed are kept. What is slow asks for
        windows that are `times` as long, and for `most` of them.
        """
        effort = replace(
            self.effort,
            windows=min(most, self.effort.windows),
            window_s=times * self.effort.window_s,
            warmup_s=times * self.effort.warmup_s,
        )
        for _ in range(warmups):
            measure(effort.warmup_s)
        gc.collect()
        found: list[Window] = []
        while len(found) < 2 * effort.windows:
            wait_until_quiet(effort.quiet_s)
            gauge = Gauge()
            values = measure(effort.window_s)
            others, stolen = gauge.read()
            found.append({**values, "others": others, "stolen": stolen})
            quiet = [w for w in found if not w["others"] > QUIET_PERCENT]
            if len(quiet) >= effort.windows or (effort.quiet_s == 0 and len(found) >= effort.windows):
                break
        return sorted(found, key=lambda w: w["others"])[: effort.windows]

    def figure(
        self, name: str, what: str, unit: str, samples: Sequence[float], **extra: float | int | str | None
    ) -> Figure:
        """A figure of given samples."""
        return Figure(name=name, what=what, unit=unit, samples=samples, target=TARGETS.get(name), extra=extra)

    def figure_of(self, name: str, what: str, unit: str, key: str, windows: Sequence[Window]) -> Figure:
        """The figure of one value of all windows, with the medians of the other values beside it."""
        others = {k: round(statistics.median(w[k] for w in windows), 4) for k in windows[0] if k != key}
        return self.figure(name, what, unit, [w[key] for w in windows], **others)

    def close(self) -> None:
        """Remove all data."""
        shutil.rmtree(self.folder, ignore_errors=True)
