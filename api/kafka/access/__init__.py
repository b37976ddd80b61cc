"""Who Kafka's clients are, and what each of their calls needs."""

from __future__ import annotations

from api.kafka.access.exchanges import MECHANISMS
from api.kafka.access.needs import Asker
from api.kafka.access.operations import operations
from api.kafka.access.session import Session

__all__ = ["MECHANISMS", "Asker", "Session", "operations"]
