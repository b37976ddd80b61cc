"""Metadata and DescribeCluster: which processes there are, which topics, and who leads what."""

from __future__ import annotations

from api.auth import permit_put
from api.host import Topics
from api.kafka.access import Asker
from api.kafka.calls.places import EPOCH, Node, Places
from api.kafka.messages import (
    BROKERS,
    NO_TOPIC_ID,
    BrokerNode,
    ClusterNode,
    DescribeClusterRequest,
    DescribeClusterResponse,
    ErrorCode,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    error_code_of,
)
from api.kafka.topic_ids import topic_id_of
from mq.errors import DeltaMQError, Unprocessable
from mq.meta import Topic
from mq.names import check_client_topic, is_system

__all__ = ["Cluster"]


class Cluster:
    """The calls about the cluster; used on the event loop."""

    def __init__(self, places: Places, topics: Topics, *, auto_create: bool) -> None:
        self._places = places
        self._topics = topics
        self._create = auto_create

    async def metadata(self, request: MetadataRequest, version: int, asker: Asker) -> MetadataResponse:
        """Return the nodes, and the topics that are asked for: all for null, in version 0 for an empty list."""
        if request.topics is None or (version == 0 and not request.topics):
            is_shown, known = asker.shown("topic"), self._topics.state.topics.values()
            topics = [self._shown(one) for one in known if self._places.served(one) and is_shown(one.name)]
        else:
            create = self._create and request.allow_auto_topic_creation
            topics = [await self._called(topic, create, asker) for topic in request.topics]
        return MetadataResponse(
            brokers=[BrokerNode(*node) for node in self._places.nodes()],
            cluster_id=self._places.cluster,
            controller_id=self._places.here.id,
            topics=topics,
        )

    async def _called(self, wanted: MetadataRequestTopic, create: bool, asker: Asker) -> MetadataTopic:
        """Return a topic by its name, or by its id: then it is not made, and an error does not say its name."""
        name, is_named = wanted.name, wanted.topic_id == NO_TOPIC_ID
        try:
            if name is None or not is_named:
                name = await self._places.ids.name(wanted.topic_id)
            check_client_topic(name)
            asker.check(MetadataRequest, topic=name)
            if create and is_named:
                await self._topics.for_produce(name, lambda _: None, permit_put(asker.caller, name))
            return self._shown((await self._places.topic(name)).topic)
        except DeltaMQError as error:
            return MetadataTopic(error_code_of(error), name if is_named else None, wanted.topic_id)

    def _shown(self, topic: Topic) -> MetadataTopic:
        partitions = [_partition(index, leader) for index, leader in enumerate(self._places.shown(topic))]
        return MetadataTopic(ErrorCode.NONE, topic.name, topic_id_of(topic), is_system(topic.name), partitions)

    def describe(self, request: DescribeClusterRequest, asker: Asker) -> DescribeClusterResponse:
        """Return the nodes of the cluster."""
        kind = request.endpoint_type
        try:
            asker.check(DescribeClusterRequest)
            if kind != BROKERS:
                detail = f"endpoint type {kind}: there are brokers alone (type {BROKERS}), which do what controllers do"
                raise Unprocessable(detail, code="endpoint_type")
        except DeltaMQError as error:
            refused = error_code_of(error), error.detail
            return DescribeClusterResponse(
                error_code=refused[0],
                error_message=refused[1],
                endpoint_type=kind,
                cluster_id="",
                controller_id=-1,
                brokers=[],
            )
        return DescribeClusterResponse(
            cluster_id=self._places.cluster,
            controller_id=self._places.here.id,
            brokers=[ClusterNode(*node) for node in self._places.nodes()],
        )


def _partition(index: int, leader: Node | None) -> MetadataPartition:
    """Return a partition as Kafka's clients see it: the store keeps the copies, so the leader is the only replica."""
    if leader is None:
        return MetadataPartition(ErrorCode.LEADER_NOT_AVAILABLE, index, -1)
    return MetadataPartition(ErrorCode.NONE, index, leader.id, EPOCH, [leader.id], [leader.id])
