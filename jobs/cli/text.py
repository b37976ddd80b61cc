"""What commands print: the output of `deltamq jobs list`, for people and for machines, and a progress bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.state import JobState, ShardState, behind_of
from deltamq.tables.ops.job_runs import LastRun


def as_json(state: JobState) -> dict[str, object]:
    """Return a job's state as a JSON object."""
    return {
        "name": state.job.name,
        "does": state.job.summary,
        "engine": state.engine,
        "every_s": state.every_s,
        "last_run": _run_json(state.last),
        "behind_s": round(state.behind_s, 3),
        "failures": state.last.failures if state.last else 0,
        "last_error": _error_json(state.last),
        "shards": [_shard_json(shard) for shard in state.shards],
    }


def _run_json(last: LastRun | None) -> dict[str, object] | None:
    if last is None:
        return None
    return {
        "started_at": last.started_at.isoformat(),
        "seconds": last.seconds,
        "ok": last.ok,
        "detail": last.detail,
        "facts": last.facts,
        "rows": last.rows,
        "rows_since": last.since.isoformat() if last.since else None,
    }


def _error_json(last: LastRun | None) -> dict[str, object] | None:
    if last is None or last.last_error_at is None:
        return None
    return {"at": last.last_error_at.isoformat(), "detail": last.last_error}


def _shard_json(shard: ShardState) -> dict[str, object]:
    owner = shard.owner
    return {
        "shard": shard.shard,
        "owner": owner
        and {
            "application": owner.application,
            "host": owner.host,
            "pid": owner.pid,
            "since": _since(owner).isoformat(),
        },
        "running_since": shard.running.started_at.isoformat() if shard.running else None,
        "last_run_at": shard.last.started_at.isoformat() if shard.last else None,
        "ok": shard.last.ok if shard.last else None,
        "failures": shard.last.failures if shard.last else 0,
        "behind": behind_of(shard.last),
    }


def as_text(state: JobState, *, long: bool = False) -> str:
    """Return a job's state as text; with `long`, including its whole docstring."""
    does = state.job.document if long else state.job.summary
    lines = [f"{state.job.name}: {does}", f"    {_schedule(state)}"]
    last = state.last
    if last is not None and last.since is not None:
        lines.append(f"    {last.rows} rows since {_time(last.since)}")
    if last is not None and last.last_error_at is not None:
        row = f"{last.failures} failures in a row; " if last.failures > 1 else ""
        lines.append(f"    {row}last error {_time(last.last_error_at)}: {last.last_error}")
    return "\n".join([*lines, *_shard_lines(state.shards)])


def _schedule(state: JobState) -> str:
    last = state.last
    if last is None:
        ran = "never ran"
    else:
        facts = " ".join(f"{key}={value}" for key, value in last.facts.items())
        how = f"ok {facts}" if last.ok else f"FAILED {last.detail}"
        ran = f"last run {_time(last.started_at)}, {last.seconds:g} s, {how}".rstrip()
    behind = f", {state.behind_s:.0f} s behind" if state.behind_s >= 1 else ""
    return f"engine {state.engine}, every {state.every_s:g} s; {ran}{behind}"


def _shard_lines(shards: Sequence[ShardState]) -> list[str]:
    lines: dict[str, list[str]] = {}
    for shard in shards:
        lines.setdefault(_owner_text(shard), []).append(shard.shard)
    return [f"    shards {', '.join(names)}: {owner}" for owner, names in lines.items()]


def _owner_text(shard: ShardState) -> str:
    owner = shard.owner
    if owner is None:
        return "no owner"
    under_way = f", running since {_time(shard.running.started_at)}" if shard.running else ""
    return f"{owner} (application {owner.application}) since {_time(_since(owner))}{under_way}"


def _since(owner: Holder) -> datetime:
    return datetime.fromtimestamp(owner.since_ms / 1000, UTC)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


@contextlib.contextmanager
def bytes_bar(title: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """Draw a bar on stderr while the block runs; nothing if stderr is not a terminal.

    Yields a function to call with the bytes done, the bytes in all (None if unknown), and what is at work.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    # rich takes 80 ms to import: only commands that draw a bar do so
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
