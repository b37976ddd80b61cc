"""A group's offsets in one topic over REST: read, commit, reset."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from deltamq.api.host.peers import Call
from deltamq.api.routes.group_offsets.commits import OffsetCommits, check_texts
from deltamq.api.routes.group_offsets.offsets import TopicOffsets
from deltamq.api.routes.group_offsets.resets import OffsetResets
from deltamq.api.routes.groups import ReaderName
from deltamq.api.routes.lane_views import LaneView, LaneViews
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import problems
from deltamq.mq.wire.groups import CommitRequest, ResetRequest

router = APIRouter(prefix="/v1/groups/{group}/topics/{topic}/offsets", tags=["groups"])

_COMMIT: Final = JsonBody(CommitRequest, {"offsets": {"orders@broker-a": 120}, "client_id": "worker-1"})
_RESET: Final = JsonBody(ResetRequest, {"to": "first", "retries": "drop"})


class GroupOffsets(BaseModel):
    """The group's progress: `offsets` of partitions where it has committed, and `partitions` with details of all.

    `epochs` and `topic_id` may be sent with a commit.
    """

    group: str
    topic: str
    topic_id: str
    offsets: dict[str, int]
    epochs: dict[str, int]
    partitions: list[LaneView]


class CommittedOffsets(BaseModel):
    """The group's offsets after the commit, and their epochs; an offset that was already higher stays."""

    group: str
    topic: str
    topic_id: str
    offsets: dict[str, int]
    epochs: dict[str, int]


class ResetOffsets(BaseModel):
    """Where the group goes on, and its new epoch there; handles of earlier epochs are refused."""

    group: str
    topic: str
    epoch: int
    offsets: dict[str, int]


async def _offsets_of(service: Running) -> TopicOffsets:
    topics, groups, owners, lanes = service.topics, service.groups, service.owners, service.lanes
    commits = OffsetCommits(
        service.meta,
        topics,
        groups,
        owners,
        service.hosting,
        lanes=lanes,
        locks=service.locks,
        commits=service.commits,
        progress=service.progress,
        statistics=service.statistics,
    )
    return TopicOffsets(
        topics,
        groups,
        owners,
        LaneViews(lanes, service.hosting, topics, service.moved),
        commits=commits,
        resets=OffsetResets(service.meta, topics, groups, owners, lanes=lanes, progress=service.progress),
        copies=service.global_copies,
        times=service.global_times,
    )


_Offsets = Annotated[TopicOffsets, Depends(_offsets_of)]


@router.get(
    "", summary="A group's offsets in a topic", response_model=GroupOffsets, responses=problems(400, 404, 500, 503)
)
async def show_offsets(group: ReaderName, topic: TopicName, offsets: _Offsets, request: Request) -> Any:
    return await offsets.show(group, topic, Call.of(request.scope))


@router.put(
    "",
    summary="Commit offsets; durable when answered",
    response_model=CommittedOffsets,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_COMMIT.described,
)
async def commit_offsets(group: ReaderName, topic: TopicName, offsets: _Offsets, request: Request) -> Any:
    asked = await _COMMIT.read(request)
    check_texts(asked)
    return await offsets.commit(group, topic, Call.of(request.scope), asked)


@router.post(
    "/reset",
    summary="Reset a group's offsets in a topic, in a new epoch",
    response_model=ResetOffsets,
    responses=problems(400, 404, 413, 415, 422, 500, 503, 507),
    openapi_extra=_RESET.described,
)
async def reset_offsets(group: ReaderName, topic: TopicName, offsets: _Offsets, request: Request) -> Any:
    asked = await _RESET.read(request)
    return await offsets.reset(group, topic, Call.of(request.scope), asked)
