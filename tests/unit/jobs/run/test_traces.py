"""A span for each run of a job that did something (SPEC LOOK-17)."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltamq.jobs.run.traces import RunTraces
from deltamq.tables.config_sections import JobsSettings
from deltamq.tables.ops.job_runs import LastRun
from deltamq.tables.settings import SettingsDisagree
from tests.otlp_receiver import OtlpReceiver

STARTED = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _run(job: str, *, ok: bool = True, **facts: int | str) -> LastRun:
    detail = "" if ok else "the disk is full"
    return LastRun(job=job, started_at=STARTED, seconds=0.25, ok=ok, detail=detail, facts=facts, shards=("a", "b"))


def test_look_17_a_run_that_moved_something_or_failed_is_a_span() -> None:
    with OtlpReceiver() as receiver:
        traces = RunTraces(receiver.url, cluster="blue")
        for run in (_run("revive", rows=3), _run("revive", rows=0), _run("delay"), _run("merge", ok=False)):
            traces.ran(run)
        traces.close()
        revive, merge = receiver.spans
    assert (revive.name, revive.is_error, merge.name, merge.is_error) == ("job revive", False, "job merge", True)
    assert revive.attributes["deltamq.job.name"] == "revive" and revive.attributes["deltamq.job.rows"] == 3
    assert revive.end_ns - revive.begin_ns == 250_000_000
    assert revive.begin_ns == STARTED.timestamp() * 1e9
    assert (revive.resource["service.name"], revive.resource["service.namespace"]) == ("deltamq-jobs", "blue")


_WITHOUT = """
import sys
sys.modules["opentelemetry.sdk"] = None
from deltamq.mq.client.cli.root import main
main(sys.argv[1:])
"""


def test_look_17_a_collector_without_the_extra_is_refused_at_the_start_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", _WITHOUT, "jobs", "run", "revive", "--engine", "local", "--once"]
    monkeypatch.setenv("DELTAMQ_JOBS_TRACES_URL", "http://127.0.0.1:4318")
    command += ["--warehouse", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "jobs.traces_url" in done.stderr and "pip install 'deltamq[otel]'" in done.stderr


def test_look_17_what_is_no_url_is_refused_for_jobs_too() -> None:
    with pytest.raises(SettingsDisagree, match=r"jobs\.traces_url"):
        JobsSettings(traces_url="collector:4318")
