"""The commands `deltamq jobs` and `deltamq verify`."""

from __future__ import annotations

from deltamq.jobs.cli.jobs_group import jobs_command

__all__ = [
    "jobs_command",
]
