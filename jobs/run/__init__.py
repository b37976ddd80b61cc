"""Running jobs: what a job is, when it runs, who may run it, and what became of it."""

from __future__ import annotations

from jobs.run.run_once import run_jobs

__all__ = ["run_jobs"]
