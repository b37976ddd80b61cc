"""How far a group is in each partition of a topic, as the API shows it: a fold of the offsets and of the tables."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from api.hosted_group import lanes_of
from api.service import Service
from api.topics import rfc3339
from mq.checkpoint import LaneKey
from mq.errors import Corrupt
from mq.progress import Bounds, lag_messages
from mq.topics import Topic

__all__ = ["LaneView", "lane_bounds", "lane_views"]


class LaneView(BaseModel):
    """One partition as the group sees it.

    `retry`: the group's retried messages of the topic on one broker. `lag` counts messages that the group has not
    committed, all of them where it has committed nothing; what is not known of a damaged partition is null, and so is
    the `last_consume_time` of what was consumed before the service started.
    """

    partition: str
    retry: bool
    committed_offset: int | None
    min_offset: int | None = None
    end_offset: int | None = None
    lag: int | None = None
    in_flight: int
    last_consume_time: str | None


async def lane_views(service: Service, group: str, topic: Topic, *, consumed: bool) -> list[LaneView]:
    """All partitions of a topic in route order, retries last; with `consumed` none when the group has touched none.

    A retry partition that does not exist yet is left out.
    """
    lanes = lanes_of(group, topic)
    begun = [await _begun(service, lane) for lane in lanes]
    if consumed and not any(map(_is_touched, begun)):
        return []
    bounds = await asyncio.gather(*(_readable_bounds(service, lane, topic.name) for lane in lanes))
    return [
        _with_bounds(view, found)
        for view, found in zip(begun, bounds, strict=True)
        if found is not None or not view.retry or _is_touched(view)
    ]


def _is_touched(view: LaneView) -> bool:
    return view.committed_offset is not None or view.in_flight > 0 or view.last_consume_time is not None


async def _begun(service: Service, lane: LaneKey) -> LaneView:
    """What memory knows of a lane."""
    committed = await service.lanes.committed(lane)
    last_ms = service.lanes.last_consumed_ms(lane)
    return LaneView(
        partition=lane.partition,
        retry=lane.retry,
        committed_offset=None if committed is None else committed.offset,
        in_flight=service.lanes.in_flight(lane),
        last_consume_time=None if last_ms is None else rfc3339(last_ms * 1000),
    )


def _with_bounds(view: LaneView, bounds: Bounds | None) -> LaneView:
    if bounds is None:
        return view
    lag = lag_messages(view.committed_offset, bounds)
    return view.model_copy(update={"min_offset": bounds.min_offset, "end_offset": bounds.end_offset, "lag": lag})


async def _readable_bounds(service: Service, lane: LaneKey, topic: str) -> Bounds | None:
    try:
        return await lane_bounds(service, lane, topic)
    except Corrupt:
        return None


async def lane_bounds(service: Service, lane: LaneKey, topic: str) -> Bounds | None:
    """What the lane's partition holds now, whoever wrote it; None for a retry partition that does not exist yet."""
    partition = service.lanes.partition_of(lane, topic)
    if lane.retry:
        log = await partition.look()
    else:
        await partition.refresh()
        log = partition.log
    return None if log is None else Bounds(log.min_offset, log.end_offset)
