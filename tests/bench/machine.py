"""What the benchmark ran on, and how busy everything else was meanwhile.

On Linux the work of other programs is what is left of the busy time after our processes, kernel threads (which
mostly work for us: journal and writeback) and interrupts. Elsewhere it is not known.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec
import psutil

__all__ = ["Gauge", "commit_of", "facts", "git", "wait_until_quiet"]

_PROC: Final = Path("/proc")
_KTHREADD: Final = 2
_PACKAGES: Final = ("deltamq", "pyarrow", "numpy", "uvicorn", "uvloop", "fastapi", "pyspark", "delta-spark")
#: Others may use this share of all cores before a window is measured.
QUIET_PERCENT: Final = 8.0


class _Ticks(msgspec.Struct, frozen=True):
    total: int
    others: int
    stolen: int


class Gauge:
    """Share of the machine that others used between two looks, in percent of all cores."""

    def __init__(self) -> None:
        self._began = _ticks()

    def read(self) -> tuple[float, float]:
        """(others, stolen by the hypervisor) since the gauge was made; NaN where it is not known."""
        if self._began is None:
            return float("nan"), float("nan")
        now = _ticks()
        assert now is not None
        total = max(1, now.total - self._began.total)
        others = max(0, now.others - self._began.others)
        return round(100 * others / total, 1), round(100 * (now.stolen - self._began.stolen) / total, 1)


def _ticks() -> _Ticks | None:
    if not (_PROC / "stat").exists():
        return None
    user, nice, system, idle, wait, irq, soft, stolen = map(int, (_PROC / "stat").read_text().split()[1:9])
    ours_and_kernel = _our_ticks()
    total = user + nice + system + idle + wait + irq + soft + stolen
    return _Ticks(total, user + nice + system - ours_and_kernel, stolen)


def _our_ticks() -> int:
    """CPU ticks of this process, of everything it started, and of kernel threads."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    me = os.getpid()
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            ticks[pid] = int(fields[11]) + int(fields[12]) + (int(fields[13]) + int(fields[14]) if pid == me else 0)
    return sum(ticks[pid] for pid in ticks if _descends(pid, parents, {me, _KTHREADD}))


def _descends(pid: int, parents: dict[int, int], roots: set[int]) -> bool:
    while pid and pid not in roots:
        pid = parents.get(pid, 0)
    return pid in roots


def wait_until_quiet(at_most_s: float) -> float:
    """Wait until others use little of the machine, or the time is over; what they used at the last look."""
    end = time.monotonic() + at_most_s
    while True:
        gauge = Gauge()
        time.sleep(0.3)
        others, _ = gauge.read()
        if not others > QUIET_PERCENT or time.monotonic() >= end:
            return others


def facts(folder: Path) -> dict[str, object]:
    """The machine and the versions that a figure depends on; `folder` is where the data goes."""
    memory = psutil.virtual_memory()
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory.total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "load_before": list(os.getloadavg()),
        "packages": {name: _version(name) for name in _PACKAGES},
        "argv": sys.argv[1:],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    info = _PROC / "cpuinfo"
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _file_system(folder: Path) -> str:
    best = ""
    kind = "unknown"
    for part in psutil.disk_partitions(all=True):
        if folder.is_relative_to(part.mountpoint) and len(part.mountpoint) >= len(best):
            best, kind = part.mountpoint, f"{part.fstype} ({part.opts})"
    return kind


def commit_of(folder: Path) -> str:
    """The commit of the code that is measured; `+` when files differ from it."""
    try:
        head = git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(folder: Path, *args: str) -> str:
    """Return what git prints in a folder; raises `CalledProcessError`."""
    return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
