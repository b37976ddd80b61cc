"""The offsets at which reading a topic starts: the first ones, the ends, an offset, a time, or one by partition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias

from mq.client.admin import Admin
from mq.errors import Refused

__all__ = ["Start", "resume_offsets", "start_offsets"]

Start: TypeAlias = str | int | datetime | Mapping[str, int]


def start_offsets(admin: Admin, topic: str, start: Start) -> dict[str, int]:
    """Return the offset at which to start, for every partition of the topic."""
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


def resume_offsets(
    admin: Admin, topic: str, start: Start, kept: Mapping[str, int], *, whole_topic: bool
) -> dict[str, int]:
    """Return the offset at which to go on, for every partition: the stored one, else that of `start`.

    For a consumer of the whole topic with stored offsets, partitions behind the last stored one were added by an
    expansion since: they are read from their first message (SPEC MODEL-4), unless `start` names them.
    """
    offsets = start_offsets(admin, topic, start)
    names = list(offsets)
    last = max((at for at, name in enumerate(names) if name in kept), default=None)
    if whole_topic and last is not None and names[last + 1 :]:
        named = start if isinstance(start, Mapping) else {}
        first = start_offsets(admin, topic, "first")
        offsets.update((name, first[name]) for name in names[last + 1 :] if name in first and name not in named)
    offsets.update((name, kept[name]) for name in names if name in kept)
    return offsets
