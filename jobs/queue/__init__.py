"""The jobs that move messages: `revive` for unacknowledged ones, `delay` for delayed ones."""

from __future__ import annotations

from deltamq.jobs.queue.brokers import brokers_of

__all__ = [
    "brokers_of",
]
