"""Settings of topics and nodes as Kafka's clients know them: names, values, defaults, changes. Pure."""

from __future__ import annotations

from deltamq.api.kafka.settings.changes import Change, Changes, Operation, changes_of
from deltamq.api.kafka.settings.nodes import shown_of_node
from deltamq.api.kafka.settings.topics import PARTITIONER, TOPIC_SETTINGS, compression_of, shown_of_topic
from deltamq.api.kafka.settings.values import Shown

__all__ = [
    "PARTITIONER",
    "TOPIC_SETTINGS",
    "Change",
    "Changes",
    "Operation",
    "Shown",
    "changes_of",
    "compression_of",
    "shown_of_node",
    "shown_of_topic",
]
