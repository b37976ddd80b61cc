"""All calls of Kafka's clients, and the one place that every request passes.

There is no authentication yet (SASL): who may reach the port may do everything. When there is, the connection's
principal is checked in `Door.begin`, before any call.
"""

from __future__ import annotations

from collections.abc import Awaitable

from api.kafka.calls.cluster import Cluster
from api.kafka.calls.fetching import Fetching
from api.kafka.calls.places import Places
from api.kafka.calls.producing import Producing
from api.kafka.calls.topics import TopicCalls
from api.kafka.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    FetchRequest,
    Frame,
    InitProducerIdRequest,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    ProduceRequest,
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

    async def begin(self, frame: Frame, ticket: Ticket) -> Awaitable[Message | None]:
        """Begin a request, and return what waits for its answer: None if the client wants no answer.

        A connection begins its requests one after another. What must be in their order, the appends, is in a queue
        when this returns. The bytes that an answer takes are reserved in `ticket`.
        """
        if isinstance(frame.request, ProduceRequest):
            return await self._producing.begin(frame.request)
        return self._answer(frame, ticket)

    async def _answer(self, frame: Frame, ticket: Ticket) -> Message:
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
        return await self._administered(frame)

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
