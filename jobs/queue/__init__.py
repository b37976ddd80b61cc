"""Jobs that move messages: what nobody acknowledged in time, and what was delayed."""

from __future__ import annotations

from jobs.queue.brokers import brokers_of

__all__ = [
    "brokers_of",
]
