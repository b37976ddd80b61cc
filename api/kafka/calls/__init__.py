"""What Kafka's clients ask, answered by the service's parts."""

from __future__ import annotations
