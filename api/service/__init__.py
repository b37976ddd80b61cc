"""The composition root: one `Service` makes and holds all parts of a service process; calls are given it."""

from __future__ import annotations

from api.service.dependencies import Asking, Running
from api.service.job_watch import JobReport
from api.service.service import Service
from api.service.stops import Stopped

__all__ = ["Asking", "JobReport", "Running", "Service", "Stopped"]
