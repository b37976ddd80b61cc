"""Who Kafka's clients are, and what each of their calls needs."""

from __future__ import annotations
