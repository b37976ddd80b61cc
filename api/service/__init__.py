"""The composition root: one `Service` makes and holds all parts of a service process; calls are given it."""

from __future__ import annotations

from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.service.job_watch import JobReport
from deltamq.api.service.service import Service
from deltamq.api.service.stops import Stopped

__all__ = ["Asking", "JobReport", "Running", "Service", "Stopped"]
