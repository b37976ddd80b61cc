"""Running jobs: their registry, their schedules and locks, and the records of their runs."""

from __future__ import annotations
