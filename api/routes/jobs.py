"""The jobs of the warehouse over REST: their last runs, and the jobs that run nowhere (SPEC RETRY-7)."""

from __future__ import annotations

from fastapi import APIRouter, Response
from msgspec.structs import replace

from deltamq.api.service.dependencies import Running
from deltamq.api.service.health import JobReport
from deltamq.api.wire.fields import json_answer
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.wire.cluster import JobInfo, JobList, MissingJob

router = APIRouter(prefix="/v1/jobs", tags=["service"])


@router.get("", summary="Jobs and their last runs", responses=answers(JobList, 500))
async def jobs(service: Running) -> Response:
    reports = await service.job_watch.reports()
    return json_answer(JobList(warehouse=service.warehouse.uri, jobs=tuple(_shown(report) for report in reports)))


def missing_jobs(reports: list[JobReport]) -> tuple[MissingJob, ...]:
    """Return the jobs that the queue needs and that run nowhere."""
    return tuple(
        MissingJob(job=report.job, ok_at=None if report.last is None else report.last.ok_at, means=report.missing)
        for report in reports
        if report.missing
    )


def _shown(report: JobReport) -> JobInfo:
    shown = JobInfo(
        name=report.job, shards=report.shards, running_since=report.running_since, missing=report.missing or None
    )
    last = report.last
    if last is None:
        return shown
    return replace(
        shown,
        engine=last.engine or None,
        every_s=last.every_s,
        started_at=last.started_at,
        seconds=last.seconds,
        ok=last.ok,
        ok_at=last.ok_at,
        detail=last.detail,
        facts=last.facts,
        failures=last.failures,
    )
