"""The service says which of the jobs that the queue needs run nowhere (SPEC RETRY-7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from deltamq.api.service import health
from deltamq.api.service.health import JobReport, JobWatch
from deltamq.mq.errors import Unavailable
from deltamq.tables.ops.job_runs import LastRun, RunningRun, runs_folder
from deltamq.tables.store.store import MemoryStore
from tests.api.running import config_for, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _ran(job: str, at: datetime, *, ok: bool = True) -> LastRun:
    return LastRun(
        job=job, started_at=at, seconds=1, ok=ok, detail="", ok_at=at if ok else None, engine="spark", every_s=1
    )


def test_retry_7_the_service_names_jobs_that_run_nowhere(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        missing = api.call("GET", "/v1/cluster").json["missing_jobs"]
        assert [(one["job"], one["ok_at"]) for one in missing] == [("delay", None), ("revive", None)]
        assert "deltamq_missing_jobs 2.0" in api.call("GET", "/metrics").body.decode()
        shown = api.call("GET", "/v1/jobs").json
        assert shown["warehouse"] == str(tmp_path)
        assert [(one["name"], one["ok"]) for one in shown["jobs"]] == [("delay", None), ("revive", None)]
        assert not (tmp_path / "jobs").exists(), "a look makes nothing"


def _watch(store: MemoryStore, times: list[datetime]) -> JobWatch:
    async def run(work: Callable[[], list[JobReport]]) -> list[JobReport]:
        return work()

    return JobWatch(store, run=run, now_ms=lambda: int(times[0].timestamp() * 1_000), is_used=lambda: True)


def _looked(check: Callable[[MemoryStore, JobWatch, list[datetime]], Awaitable[None]]) -> None:
    async def play() -> None:
        store, times = MemoryStore(), [NOW]
        await check(store, _watch(store, times), times)

    asyncio.run(play())


def test_retry_7_each_shard_of_a_job_is_shown_as_its_newest_run_left_it(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        store = api.service.warehouse.store
        runs = [
            LastRun(
                job="revive",
                started_at=NOW + timedelta(seconds=seconds),
                seconds=1,
                ok=error == "",
                detail=error,
                facts={"behind_ms": seconds},
                shards=shards,
                application=application,
                engine="spark",
                last_error=error,
            )
            for application, seconds, shards, error in (
                ("one", 5, ["broker-a"], ""),
                ("two", 3, ["broker-a", "broker-b"], "no disk"),
            )
        ]
        for run in runs:
            store.replace(f"{runs_folder('revive')}/{run.application}.json", msgspec.json.encode(run))
        (revive,) = (one for one in api.call("GET", "/v1/jobs").json["jobs"] if one["name"] == "revive")
        shards = [(one["shard"], one["owner"], one["behind_ms"], one["error"]) for one in revive["shards"]]
        assert shards == [("broker-a", "one", 5, None), ("broker-b", "two", 3, "no disk")]
        assert (revive["engine"], revive["shards"][0]["last_run_time"]) == ("spark", "2026-01-01T00:00:05Z")


def test_retry_7_what_ran_anywhere_lately_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_FRESH_S", 0.0)

    async def check(store: MemoryStore, watch: JobWatch, times: list[datetime]) -> None:
        async def missing() -> list[str]:
            await watch.reports()
            return [one.job for one in watch.missing]

        store.replace("jobs/revive/runs/one.json", msgspec.json.encode(_ran("revive", NOW - timedelta(hours=1))))
        store.replace("jobs/revive/runs/broken.json", b"{")
        store.replace("jobs/merge/runs/one.json", msgspec.json.encode(_ran("merge", NOW, ok=False)))
        assert await missing() == ["delay", "revive"]
        store.replace("jobs/revive/runs/two.json", msgspec.json.encode(_ran("revive", NOW)))
        under_way = RunningRun(job="delay", started_at=NOW, shards=["all"], application="one")
        store.replace("jobs/delay/running/one.json", msgspec.json.encode(under_way))
        assert await missing() == []
        times[0] = NOW + timedelta(minutes=2)
        assert await missing() == ["revive"]
        store.replace("jobs/revive/runs/two.json", msgspec.json.encode(_ran("revive", times[0], ok=False)))
        assert await missing() == ["revive"], "a job that fails each time does nothing"
        reports = {one.job: one for one in await watch.reports()}
        assert reports["merge"].missing == "" and reports["delay"].running_since == NOW

    _looked(check)


def test_retry_7_the_log_says_once_that_a_job_is_missing_and_that_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "_FRESH_S", 0.0)
    monkeypatch.setattr(health, "_LOOK_S", 0.001)
    caplog.set_level(logging.INFO, "deltamq.api")

    def told(event: str) -> int:
        return sum(f"event={event} " in one.getMessage() for one in caplog.records)

    async def check(store: MemoryStore, watch: JobWatch, times: list[datetime]) -> None:
        store.replace("jobs/delay/runs/one.json", msgspec.json.encode(_ran("delay", NOW)))
        watch.start()
        while not told("job_missing"):
            await asyncio.sleep(0.001)
        store.replace("jobs/revive/runs/one.json", msgspec.json.encode(_ran("revive", NOW)))
        while not told("job_back"):
            await asyncio.sleep(0.001)
        await watch.stop()
        assert (told("job_missing"), told("job_back")) == (1, 1)

    _looked(check)


def test_retry_7_records_that_cannot_be_read_are_as_at_the_last_look(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "_FRESH_S", 0.0)

    async def check(store: MemoryStore, watch: JobWatch, times: list[datetime]) -> None:
        before = await watch.reports()

        def refuse(folder: str) -> list[str]:
            raise Unavailable("the store is away", code="storage_error")

        monkeypatch.setattr(store, "folders", refuse)
        assert await watch.reports() == before

    _looked(check)
    assert "event=jobs_not_read code=storage_error" in caplog.text
