"""All calls of Kafka's clients, and the one place that every request passes.

There is no authentication yet (SASL): who may reach the port may do everything. When there is, the connection's
principal is checked in `Door.begin`, before any call.
"""

from __future__ import annotations

from collections.abc import Awaitable

from api.kafka.calls.cluster import Cluster
from api.kafka.calls.fetching import Fetching
from api.kafka.calls.group_offsets import GroupOffsets
from api.kafka.calls.members import Members
from api.kafka.calls.places import Places
from api.kafka.calls.producing import Producing
from api.kafka.calls.topics import TopicCalls
from api.kafka.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    Frame,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    SyncGroupRequest,
    offered,
    unknown_version,
)
from api.service import Service
from api.wire import Ticket

__all__ = ["Door"]


class Door:
    """The calls of one service; used on the event loop."""

    def __init__(self, service: Service, advertised: str) -> None:
        """`advertised` is the address, `HOST:PORT`, under which clients reach this process."""
        places = Places(service, advertised)
        self._producing = Producing(service, places)
        self._fetching = Fetching(service, places)
        self._cluster = Cluster(service, places)
        self._topics = TopicCalls(service, places)
        self._members = Members(service)
        self._offsets = GroupOffsets(service, places, self._members)

    def begin_stop(self) -> None:
        """Let no member of a group wait any longer."""
        self._members.end()

    async def begin(self, frame: Frame, ticket: Ticket, host: str) -> Awaitable[Message | None]:
        """Begin a request, and return what waits for its answer: None if the client wants no answer.

        A connection begins its requests one after another. What must be in their order, the appends, is in a queue
        when this returns. The bytes that an answer takes are reserved in `ticket`; `host` is where the client is.
        """
        if isinstance(frame.request, ProduceRequest):
            return await self._producing.begin(frame.request)
        return self._answer(frame, ticket, host)

    async def _answer(self, frame: Frame, ticket: Ticket, host: str) -> Message:
        match frame.request:
            case FetchRequest() as request:
                return await self._fetching.fetch(request, ticket)
            case ListOffsetsRequest() as request:
                return await self._fetching.list_offsets(request)
            case MetadataRequest() as request:
                return await self._cluster.metadata(request, frame.version)
            case DescribeClusterRequest() as request:
                return self._cluster.describe(request)
            case InitProducerIdRequest() as request:
                return self._producing.init_producer_id(request)
            case ApiVersionsRequest():
                return offered() if frame.is_known else unknown_version()
        return await self._of_member(frame, host) or await self._of_group(frame) or await self._administered(frame)

    async def _of_member(self, frame: Frame, host: str) -> Message | None:
        match frame.request:
            case FindCoordinatorRequest() as request:
                return self._members.coordinator(request)
            case JoinGroupRequest() as request:
                return await self._members.join(request, frame.client_id, host)
            case SyncGroupRequest() as request:
                return await self._members.sync(request)
            case HeartbeatRequest() as request:
                return self._members.heartbeat(request)
            case LeaveGroupRequest() as request:
                return self._members.leave(request)
        return None

    async def _of_group(self, frame: Frame) -> Message | None:
        match frame.request:
            case OffsetCommitRequest() as request:
                return await self._offsets.commit(request)
            case OffsetFetchRequest() as request:
                return await self._offsets.fetch(request)
            case ListGroupsRequest():
                return self._members.listed()
            case DescribeGroupsRequest() as request:
                return self._members.described(request)
            case DeleteGroupsRequest() as request:
                return await self._members.delete(request)
        return None

    async def _administered(self, frame: Frame) -> Message:
        match frame.request:
            case CreateTopicsRequest() as request:
                return await self._topics.create(request)
            case DeleteTopicsRequest() as request:
                return await self._topics.delete(request)
            case CreatePartitionsRequest() as request:
                return await self._topics.grow(request)
            case DescribeConfigsRequest() as request:
                return await self._topics.configs(request)
        raise AssertionError(f"call {frame.api.key} is offered, so it has an answer")
