"""All calls of Kafka's clients, and the one place that every request passes.

Each call is told who asks, and checks what it needs (`api/kafka/access/needs.py`), for each topic and group that it
names.
"""

from __future__ import annotations

from collections.abc import Awaitable

from api.kafka.access import Asker, Session
from api.kafka.calls.cluster import Cluster
from api.kafka.calls.configs import TopicConfigs
from api.kafka.calls.fetching import Fetching
from api.kafka.calls.group_offsets import GroupOffsets
from api.kafka.calls.members import Members
from api.kafka.calls.places import Places
from api.kafka.calls.producing import Producing
from api.kafka.calls.topics import TopicCalls
from api.kafka.messages import (
    AlterConfigsRequest,
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
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
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
        self._configs = TopicConfigs(service, places)
        self._members = Members(service)
        self._offsets = GroupOffsets(service, places, self._members)

    def begin_stop(self) -> None:
        """Let no member of a group wait any longer."""
        self._members.end()

    async def begin(
        self, frame: Frame, ticket: Ticket, host: str, session: Session, asker: Asker
    ) -> Awaitable[Message | None]:
        """Begin a request, and return what waits for its answer: None if the client wants no answer.

        A connection begins its requests one after another. What must be in their order, the appends, is in a queue
        when this returns, and so is who the client is. The bytes that an answer takes are reserved in `ticket`; `host`
        is where the client is, `asker` who asks.
        """
        match frame.request:
            case ProduceRequest() as request:
                return await self._producing.begin(request, asker)
            case SaslHandshakeRequest() as request:
                return _at_once(session.handshake(request))
            case SaslAuthenticateRequest() as request:
                return _at_once(await session.authenticate(request))
        return self._answer(frame, ticket, host, asker)

    async def _answer(self, frame: Frame, ticket: Ticket, host: str, asker: Asker) -> Message:
        match frame.request:
            case FetchRequest() as request:
                return await self._fetching.fetch(request, ticket, asker)
            case ListOffsetsRequest() as request:
                return await self._fetching.list_offsets(request, asker)
            case OffsetForLeaderEpochRequest() as request:
                return await self._fetching.ends_of_epochs(request, asker)
            case MetadataRequest() as request:
                return await self._cluster.metadata(request, frame.version, asker)
            case DescribeClusterRequest() as request:
                return self._cluster.describe(request, asker)
            case InitProducerIdRequest() as request:
                return self._producing.init_producer_id(request, asker)
            case ApiVersionsRequest():
                return offered() if frame.is_known else unknown_version()
        found = await self._of_member(frame, host, asker) or await self._of_group(frame, asker)
        return found or await self._administered(frame, asker)

    async def _of_member(self, frame: Frame, host: str, asker: Asker) -> Message | None:
        match frame.request:
            case FindCoordinatorRequest() as request:
                return self._members.coordinator(request, asker)
            case JoinGroupRequest() as request:
                return await self._members.join(request, frame, host, asker)
            case SyncGroupRequest() as request:
                return await self._members.sync(request, asker)
            case HeartbeatRequest() as request:
                return self._members.heartbeat(request, asker)
            case LeaveGroupRequest() as request:
                return self._members.leave(request, asker)
        return None

    async def _of_group(self, frame: Frame, asker: Asker) -> Message | None:
        match frame.request:
            case OffsetCommitRequest() as request:
                return await self._offsets.commit(request, asker)
            case OffsetFetchRequest() as request:
                return await self._offsets.fetch(request, asker)
            case OffsetDeleteRequest() as request:
                return await self._offsets.delete(request, asker)
            case ListGroupsRequest():
                return self._members.listed(asker)
            case DescribeGroupsRequest() as request:
                return self._members.described(request, asker)
            case DeleteGroupsRequest() as request:
                return await self._members.delete(request, asker)
        return None

    async def _administered(self, frame: Frame, asker: Asker) -> Message:
        match frame.request:
            case CreateTopicsRequest() as request:
                return await self._topics.create(request, asker)
            case DeleteTopicsRequest() as request:
                return await self._topics.delete(request, asker)
            case CreatePartitionsRequest() as request:
                return await self._topics.grow(request, asker)
            case DescribeConfigsRequest() as request:
                return await self._configs.describe(request, asker)
            case AlterConfigsRequest() as request:
                return await self._configs.replace(request, asker)
            case IncrementalAlterConfigsRequest() as request:
                return await self._configs.alter(request, asker)
        raise AssertionError(f"call {frame.api.key} is offered, so it has an answer")


async def _at_once(answer: Message) -> Message:
    return answer
