"""Where reading a topic starts: its first messages, its end, an offset, a time, or offsets by partition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias

from mq.client.admin import Admin
from mq.errors import Refused

__all__ = ["Start", "start_offsets"]

Start: TypeAlias = str | int | datetime | Mapping[str, int]


def start_offsets(admin: Admin, topic: str, start: Start) -> dict[str, int]:
    """The offset at which to start, for every partition of the topic."""
    info = admin.get_topic(topic)
    if isinstance(start, datetime):
        return admin.offsets_at(topic, start)
    if isinstance(start, Mapping):
        return {p.partition: start.get(p.partition, p.min_offset) for p in info.partitions}
    if start == "first":
        return {p.partition: p.min_offset for p in info.partitions}
    if start == "last":
        return {p.partition: p.max_offset for p in info.partitions}
    if not isinstance(start, int) or start < 0:
        raise Refused("start must be 'first', 'last', an offset, a time or offsets by partition", field="start")
    return {p.partition: start for p in info.partitions}
