"""Who Kafka's clients are, and what each of their calls needs."""

from __future__ import annotations

from deltamq.api.kafka.access.exchanges import MECHANISMS
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.access.operations import operations
from deltamq.api.kafka.access.session import Session

__all__ = ["MECHANISMS", "Asker", "Session", "operations"]
