"""The job `merge`, which merges the queue's own logs into state tables."""

from __future__ import annotations
