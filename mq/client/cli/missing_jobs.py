"""A warning where people look when messages do not come: jobs that the queue needs run nowhere (SPEC RETRY-7)."""

from __future__ import annotations

from contextlib import suppress

import click

from deltamq.mq.client.admin.admin import Admin, ClusterInfo
from deltamq.mq.client.cli.console import PATIENCE
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.errors import DeltaMQError


def warn_of_missing_jobs(url: str, access: ClientAccess) -> None:
    """Write one line to stderr if jobs are missing; a service that does not say so is passed over."""
    with suppress(DeltaMQError), Admin(url, patience=PATIENCE, **access) as admin:
        line = missing_jobs_line(admin.cluster())
        if line is not None:
            click.echo(f"warning: {line}", err=True)


def missing_jobs_line(info: ClusterInfo) -> str | None:
    """Return what does not happen, and what to do about it; None if all jobs run."""
    if not info.missing_jobs:
        return None
    names = " and ".join(one.job for one in info.missing_jobs)
    means = ", and ".join(one.means for one in info.missing_jobs)
    verb = "runs" if len(info.missing_jobs) == 1 else "run"
    return f"no job {names} {verb} on {info.warehouse}: {means}. Start `deltamq jobs run --warehouse {info.warehouse}`"
