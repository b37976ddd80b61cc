"""The earlier place of `run_jobs`, which is in `jobs.run` now; this name goes with the next release."""

from __future__ import annotations
