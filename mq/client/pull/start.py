"""The offsets at which reading a topic starts: the first ones, the ends, an offset, a time, or one by partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TypeAlias

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.topic_admin import TopicInfo
from deltamq.mq.errors import Refused

Start: TypeAlias = str | int | datetime | Mapping[str, int]


def start_offsets(admin: Admin, info: TopicInfo, start: Start, names: Collection[str] | None = None) -> dict[str, int]:
    """Return the offset at which to start, for each of these partitions or logical queues, by default for all.

    Raises
    ------
    DeltaMQError
        What `TopicInfo.min_offsets` raises, if an offset is needed that is not known.
    """
    wanted = [name for name in info.named if names is None or name in names]
    if isinstance(start, datetime):
        found = admin.offsets_at(info.topic, start) if wanted else {}
        return {name: found[name] for name in wanted if name in found}
    if isinstance(start, Mapping):
        return {**info.min_offsets([name for name in wanted if name not in start]), **_kept(start, wanted)}
    if start == "first":
        return info.min_offsets(wanted)
    if start == "last":
        return info.max_offsets(wanted)
    if not isinstance(start, int) or start < 0:
        raise Refused("start must be 'first', 'last', an offset, a time or offsets by partition", field="start")
    return dict.fromkeys(wanted, start)


def resume_offsets(
    admin: Admin,
    info: TopicInfo,
    start: Start,
    kept: Mapping[str, int],
    names: Collection[str] | None = None,
) -> dict[str, int]:
    """Return the offset at which to go on, for each of these partitions: the stored one, else that of `start`.

    For a consumer of the whole topic (`names` is None) with stored offsets, partitions behind the last stored one were
    added by an expansion since: they are read from their first message (SPEC MODEL-4), unless `start` names them.
    """
    everything = list(info.named)
    last = max((at for at, name in enumerate(everything) if name in kept), default=None)
    named = start if isinstance(start, Mapping) else {}
    added = [] if names is not None or last is None else [one for one in everything[last + 1 :] if one not in named]
    stored = _kept(kept, everything if names is None else names)
    asked = [name for name in everything if (names is None or name in names) and name not in {*added, *stored}]
    offsets = {**start_offsets(admin, info, start, asked), **info.min_offsets(added), **stored}
    return {name: offsets[name] for name in everything if name in offsets}


def _kept(offsets: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    return {name: offsets[name] for name in names if name in offsets}
