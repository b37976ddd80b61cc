"""Settings of topics and nodes as Kafka's clients know them: names, values, defaults, changes. Pure."""

from __future__ import annotations
