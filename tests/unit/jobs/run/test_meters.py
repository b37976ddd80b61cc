"""Metrics of an application of jobs, and whether it is well (SPEC LOOK-7)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import UTC, datetime

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deltamq.jobs.run.meters import Meters, serving
from deltamq.mq.errors import Unavailable
from deltamq.tables.ops.job_runs import LastRun
from deltamq.tables.store.call_counts import CallCounts

STARTED = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _run(job: str, *, ok: bool = True, **facts: int | str) -> LastRun:
    detail = "" if ok else "the disk is full"
    return LastRun(job=job, started_at=STARTED, seconds=0.3, ok=ok, detail=detail, facts=facts, shards=("a", "b"))


def _get(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _samples(text: bytes) -> dict[tuple[str, str, str], float]:
    return {
        (sample.name, sample.labels.get("job", ""), sample.labels.get("outcome", "")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_look_07_jobs_count_their_runs_and_say_whether_they_are_well() -> None:
    meters = Meters(["revive", "delay"])
    with serving(meters, "127.0.0.1", 0) as port:
        assert json.loads(_get(port, "/readyz")[1]) == {"status": "standby", "failing": {}}
        for run in (_run("revive", rows=3), _run("revive", rows=4), _run("delay", behind_ms=1_500)):
            meters.ran(run)
        assert _get(port, "/readyz") == (200, b'{"status":"ready","failing":{}}')
        meters.ran(_run("revive", ok=False))
        status, body = _get(port, "/readyz")
        assert (status, json.loads(body)) == (200, {"status": "degraded", "failing": {"revive": "the disk is full"}})
        found = _samples(_get(port, "/metrics")[1])
        assert found["deltamq_job_runs_total", "revive", "ok"] == 2
        assert found["deltamq_job_runs_total", "revive", "failed"] == 1
        assert found["deltamq_job_runs_total", "delay", "failed"] == 0
        assert found["deltamq_job_rows_total", "revive", ""] == 7
        assert found["deltamq_job_behind_seconds", "delay", ""] == 1.5
        assert found["deltamq_job_failures", "revive", ""] == 1
        assert found["deltamq_job_shards", "revive", ""] == 2
        assert found["deltamq_job_last_success_timestamp_seconds", "revive", ""] == STARTED.timestamp()
        assert found["deltamq_job_run_seconds_count", "revive", ""] == 3
        assert found["deltamq_build_info", "", ""] == 1
        assert found["process_resident_memory_bytes", "", ""] > 0
        meters.ran(_run("delay", ok=False))
        assert _get(port, "/readyz")[0] == 503 and _get(port, "/healthz")[0] == 200
        assert _get(port, "/other")[0] == 404


def test_look_07_a_port_in_use_is_a_clear_error() -> None:
    with (
        serving(Meters([]), "127.0.0.1", 0) as port,
        pytest.raises(Unavailable, match="another --metrics-port") as told,
        serving(Meters([]), "127.0.0.1", port),
    ):
        pass
    assert told.value.code == "port_in_use"


def test_look_07_jobs_count_their_calls_of_stores_and_those_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = CallCounts(), CallCounts()
    for store in stores:
        store.count("get", 100, requests=2)
    stores[1].count_failure("get")
    monkeypatch.setattr("deltamq.jobs.run.meters.store_calls", lambda: [store.so_far() for store in stores])
    shown = generate_latest(Meters(["merge"]).registry).decode()
    for name, value in (("requests", 4.0), ("failures", 1.0), ("bytes", 200.0)):
        assert f'deltamq_store_{name}_total{{operation="get"}} {value}' in shown
