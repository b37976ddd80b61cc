"""The jobs of the warehouse over REST: their last runs, and those that run nowhere (SPEC RETRY-7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from deltamq.api.service.dependencies import Running
from deltamq.api.service.health import JobReport
from deltamq.api.wire.openapi_parts import problems
from deltamq.tables.ops.job_runs import LastRun

router = APIRouter(prefix="/v1/jobs", tags=["service"])


class JobView(BaseModel):
    """A job and its last run that ended, of any application.

    `missing` says what does not happen because the job runs nowhere; null if it runs, or the queue does not need it.
    """

    job: str
    engine: str | None
    every_s: float | None
    started_at: str | None
    seconds: float | None
    ok: bool | None
    ok_at: str | None
    running_since: str | None
    detail: str | None
    facts: Mapping[str, int | str]
    failures: int
    missing: str | None


class JobList(BaseModel):
    """All jobs that have run in this warehouse or that the queue needs, by name."""

    warehouse: str
    jobs: list[JobView]


class MissingJob(BaseModel):
    """A job that the queue needs and that runs nowhere; `ok_at` is when its last run that succeeded began."""

    job: str
    ok_at: str | None
    means: str


@router.get("", summary="Jobs and their last runs", response_model=JobList, responses=problems(500))
async def jobs(service: Running) -> Any:
    reports = await service.job_watch.reports()
    return {"warehouse": service.warehouse.uri, "jobs": [_view(one) for one in reports]}


def missing_jobs(reports: list[JobReport]) -> list[MissingJob]:
    """Return the jobs that the queue needs and that run nowhere."""
    return [
        MissingJob(job=one.job, ok_at=None if one.last is None else _ok_at(one.last), means=one.missing)
        for one in reports
        if one.missing
    ]


def _view(report: JobReport) -> JobView:
    last = report.last
    return JobView(
        job=report.job,
        engine=None if last is None else last.engine or None,
        every_s=None if last is None else last.every_s,
        started_at=None if last is None else last.started_at.isoformat(),
        seconds=None if last is None else last.seconds,
        ok=None if last is None else last.ok,
        ok_at=None if last is None else _ok_at(last),
        running_since=None if report.running_since is None else report.running_since.isoformat(),
        detail=None if last is None else last.detail,
        facts={} if last is None else last.facts,
        failures=0 if last is None else last.failures,
        missing=report.missing or None,
    )


def _ok_at(last: LastRun) -> str | None:
    return None if last.ok_at is None else last.ok_at.isoformat()
