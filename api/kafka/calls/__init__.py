"""What Kafka's clients ask, answered by the service's parts."""

from __future__ import annotations

from deltamq.api.kafka.calls.door import Door

__all__ = ["Door"]
