"""Metadata and the like: which processes and topics there are, who leads what, how large it is, its replicas."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Final

from deltamq.api.auth.caller import permit_put
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.kafka.access.needs import Asker, operations
from deltamq.api.kafka.calls.layout import EPOCH, Layout, Node, check_asked, topic_id_of
from deltamq.api.kafka.messages.cluster_messages import (
    BROKERS,
    CONTROLLERS,
    METADATA_TOPIC,
    NO_OPERATIONS,
    BrokerNode,
    ClusterNode,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedPartition,
    DescribedQuorum,
    DescribedQuorums,
    DescribedTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    LogDir,
    LogDirPartition,
    LogDirTopic,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    PartitionCursor,
    QuorumListener,
    QuorumNode,
    QuorumReplica,
)
from deltamq.api.kafka.messages.codec import NO_TOPIC_ID, Message
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.log_messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    MovedLog,
    MovedLogs,
    ReassignedPartition,
    ReassignedTopic,
    ReassigningPartition,
)
from deltamq.api.log.partition import Partitions
from deltamq.mq.auth.principals import CLUSTER
from deltamq.mq.errors import DeltaMQError, NotFound, Unprocessable
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import CONSUMER_OFFSETS

#: Seconds in which no metadata request makes a deleted topic again. Kafka makes topics after its answer, so that a
#: client that deletes one, and asks then, learns that it is gone.
_GONE_S: Final = 1.0
#: The name of the one listener that each node has.
_LISTENER: Final = "KAFKA"
#: Most partitions in one answer to DescribeTopicPartitions, as in Kafka.
_DESCRIBED_MAX: Final = 2_000


class Cluster:
    """The calls about the cluster; used on the event loop."""

    def __init__(
        self, layout: Layout, topics: Topics, logs: Partitions, *, warehouse: str, auto_create: bool, partitions: int
    ) -> None:
        """`warehouse` is where the tables are; topics that are made get `partitions`, 0 for the default route."""
        self._logs = logs
        self._warehouse = warehouse
        self._made_partitions = partitions or None
        self._layout = layout
        self._topics = topics
        self._create = auto_create
        self._loop = asyncio.get_running_loop()
        #: Until when metadata requests do not make a deleted topic again, by name, the oldest first.
        self._gone: dict[str, float] = {}

    def deleted(self, name: str) -> None:
        """Let no metadata request make a topic again that was deleted just now (SPEC KAFKA-23)."""
        now = self._loop.time()
        self._gone = {other: until for other, until in self._gone.items() if until > now and other != name}
        self._gone[name] = now + _GONE_S

    def _is_gone(self, name: str) -> bool:
        return self._gone.get(name, 0.0) > self._loop.time() and self._topics.find(name) is None

    async def metadata(self, request: MetadataRequest, version: int, asker: Asker) -> MetadataResponse:
        """Return the nodes, and the topics that are asked for: all for null, in version 0 for an empty list."""
        if request.topics is None or (version == 0 and not request.topics):
            topics = [self._shown(topic) for topic in self._layout.listed(asker)]
        else:
            create = self._create and request.allow_auto_topic_creation
            once = {(topic.name, topic.topic_id): topic for topic in request.topics}.values()
            topics = [await self._called(topic, create, asker) for topic in once]
        if request.include_topic_operations:
            for topic in topics:
                if topic.name is not None and topic.error_code == ErrorCode.NONE:
                    topic.operations = operations(asker, "topic", topic.name)
        return MetadataResponse(
            brokers=[BrokerNode(*node) for node in self._layout.nodes()],
            cluster_id=self._layout.cluster,
            controller_id=self._layout.here.id,
            topics=topics,
            operations=operations(asker, "cluster", CLUSTER) if request.include_cluster_operations else NO_OPERATIONS,
        )

    async def _called(self, wanted: MetadataRequestTopic, create: bool, asker: Asker) -> MetadataTopic:
        """Return a topic by its name, or by its id: then it is not made, and an error does not say its name."""
        name, is_named = wanted.name, wanted.topic_id == NO_TOPIC_ID
        try:
            if name is None or not is_named:
                name = await self._layout.ids.name(wanted.topic_id)
            check_asked(name)
            if create and is_named and name != CONSUMER_OFFSETS and not self._is_gone(name):
                asker.check(MetadataRequest, topic=name)
                await self._topics.for_produce(
                    name, lambda _: None, permit_put(asker.caller, name), self._made_partitions
                )
            return self._shown((await self._layout.readable(MetadataRequest, name, asker)).topic)
        except DeltaMQError as error:
            return MetadataTopic(error_code_of(error), name if is_named else None, wanted.topic_id)

    def _shown(self, topic: Topic) -> MetadataTopic:
        partitions = [_partition(index, leader) for index, leader in enumerate(self._layout.shown(topic))]
        return MetadataTopic(ErrorCode.NONE, topic.name, topic_id_of(topic), topic.name == CONSUMER_OFFSETS, partitions)

    async def partitions(
        self, request: DescribeTopicPartitionsRequest, asker: Asker
    ) -> DescribeTopicPartitionsResponse:
        """Return the partitions of topics by name, of all if none is named, from the cursor on, up to a number of them.

        If there are more, the answer says where the next one begins.
        """
        names = sorted({wanted.name for wanted in request.topics})
        if not names:
            names = sorted(topic.name for topic in self._layout.listed(asker))
        at = request.cursor or PartitionCursor("", 0)
        room = max(1, min(request.partitions_max, _DESCRIBED_MAX))
        topics: list[DescribedTopic] = []
        for name in names[bisect_left(names, at.topic_name) :]:
            if not room:
                return DescribeTopicPartitionsResponse(topics=topics, cursor=PartitionCursor(name, 0))
            first = max(0, at.partition_index) if name == at.topic_name else 0
            topic, count = await self._described(name, first, room, asker)
            topics.append(topic)
            room -= len(topic.partitions)
            if first + len(topic.partitions) < count:
                cursor = PartitionCursor(name, first + len(topic.partitions))
                return DescribeTopicPartitionsResponse(topics=topics, cursor=cursor)
        return DescribeTopicPartitionsResponse(topics=topics)

    async def _described(self, name: str, first: int, room: int, asker: Asker) -> tuple[DescribedTopic, int]:
        """Return at most `room` partitions of a topic, from `first` on, and how many it has."""
        try:
            topic = (await self._layout.readable(DescribeTopicPartitionsRequest, check_asked(name), asker)).topic
        except DeltaMQError as error:
            return DescribedTopic(error_code=error_code_of(error), name=name), 0
        shown = self._shown(topic)
        described = DescribedTopic(
            error_code=ErrorCode.NONE,
            name=name,
            topic_id=shown.topic_id,
            is_internal=shown.is_internal,
            partitions=[_described(partition) for partition in shown.partitions[first : first + room]],
            operations=operations(asker, "topic", name),
        )
        return described, len(shown.partitions)

    def describe(self, request: DescribeClusterRequest, asker: Asker) -> DescribeClusterResponse:
        """Return the nodes of the cluster."""
        kind = request.endpoint_type
        try:
            asker.check(DescribeClusterRequest)
            if kind != BROKERS:
                detail = f"endpoint type {kind}: there are only brokers (type {BROKERS}), which do what controllers do"
                raise Unprocessable(detail, code="endpoint_type" if kind == CONTROLLERS else "endpoint_type_unknown")
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
            cluster_id=self._layout.cluster,
            controller_id=self._layout.here.id,
            brokers=[ClusterNode(*node) for node in self._layout.nodes()],
            operations=operations(asker, "cluster", CLUSTER) if request.include_operations else NO_OPERATIONS,
        )

    def quorum(self, request: DescribeQuorumRequest, asker: Asker) -> DescribeQuorumResponse:
        """Return who writes the metadata's log, the only voter, and the nodes that follow it (SPEC KAFKA-22)."""
        try:
            asker.check(DescribeQuorumRequest)
        except DeltaMQError as error:
            return DescribeQuorumResponse(error_code=error_code_of(error), error_message=error.detail)
        topics = [
            DescribedQuorums(topic.name, [self._quorum(topic.name, partition.index) for partition in topic.partitions])
            for topic in request.topics
        ]
        nodes = [
            QuorumNode(node.id, [QuorumListener(_LISTENER, node.host, node.port)]) for node in self._layout.nodes()
        ]
        return DescribeQuorumResponse(topics=topics, nodes=nodes)

    def _quorum(self, topic: str, index: int) -> DescribedQuorum:
        if topic != METADATA_TOPIC or index != 0:
            detail = f"{topic}, partition {index}: there is a quorum of {METADATA_TOPIC}, partition 0, only"
            return DescribedQuorum(index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=detail)
        leader, epoch, end_offset = self._layout.metadata()
        if leader is None:
            detail = "no process that Kafka's clients can reach decides about metadata at the moment"
            return DescribedQuorum(index=index, error_code=ErrorCode.LEADER_NOT_AVAILABLE, error_message=detail)
        return DescribedQuorum(
            index=index,
            error_code=ErrorCode.NONE,
            leader_id=leader.id,
            leader_epoch=epoch,
            high_watermark=end_offset,
            voters=[QuorumReplica(replica_id=leader.id, end_offset=end_offset)],
            # What the others have read is known to them alone.
            observers=[
                QuorumReplica(replica_id=node.id, end_offset=-1) for node in self._layout.nodes() if node != leader
            ],
        )

    async def log_dirs(self, request: DescribeLogDirsRequest, asker: Asker) -> DescribeLogDirsResponse:
        """Return how large the partitions are that this node leads: each node answers for its own."""
        try:
            asker.check(DescribeLogDirsRequest)
        except DeltaMQError as error:
            return DescribeLogDirsResponse(error_code=error_code_of(error), results=[])
        known = {topic.name: topic for topic in self._layout.listed(asker)}
        wanted: dict[str, Sequence[int]]
        if request.topics is None:
            wanted = {name: range(self._layout.count(topic)) for name, topic in known.items()}
        else:
            wanted = {topic.name: topic.partitions for topic in request.topics if topic.name in known}
        topics = []
        for name, indexes in wanted.items():
            sized = [await self._sized(known[name], index) for index in indexes]
            topics.append(LogDirTopic(name, [partition for partition in sized if partition is not None]))
        shown = [topic for topic in topics if topic.partitions]
        return DescribeLogDirsResponse(results=[LogDir(log_dir=self._warehouse, topics=shown)])

    async def _sized(self, topic: Topic, index: int) -> LogDirPartition | None:
        """Return the bytes of a partition, or of all segments of a queue; None if another node leads it."""
        leaders = self._layout.shown(topic)
        if not 0 <= index < len(leaders) or leaders[index] != self._layout.here:
            return None
        queues = self._topics.queues_of(topic)
        queue = None if queues is None else queues.served.get(index)
        names = [topic.route.partitions[index]] if queue is None else [segment.partition for segment in queue.readable]
        is_of_offsets = topic.name == CONSUMER_OFFSETS
        find = self._topics.offsets.partition if is_of_offsets else partial(self._logs.get, topic)
        try:
            logs = [await find(name).opened() for name in names]
        except DeltaMQError:
            return None  # it was deleted just now, or cannot be read
        return LogDirPartition(index, sum(log.stats().bytes for log in logs))


def _partition(index: int, leader: Node | None) -> MetadataPartition:
    """Return a partition as Kafka's clients see it: the store keeps the copies, so the leader is the only replica."""
    if leader is None:
        return MetadataPartition(ErrorCode.LEADER_NOT_AVAILABLE, index, -1)
    return MetadataPartition(ErrorCode.NONE, index, leader.id, EPOCH, [leader.id], [leader.id])


def _described(shown: MetadataPartition) -> DescribedPartition:
    return DescribedPartition(
        shown.error_code, shown.index, shown.leader_id, shown.leader_epoch, shown.replicas, shown.in_sync
    )


#: The error for a partition without a leader, by the type of election: of the preferred one, or of any.
_NO_LEADER = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)


class Replicas:
    """The calls about replicas; used on the event loop.

    The store keeps the copies of a partition, and the service places partitions itself: the process that serves a
    partition is its only replica. A request for that is answered as done, and any other is refused as by Kafka (SPEC
    KAFKA-22).
    """

    def __init__(self, layout: Layout, *, warehouse: str) -> None:
        """`warehouse` is where the tables are, the one folder of logs."""
        self._layout = layout
        self._warehouse = warehouse

    async def elect(self, request: ElectLeadersRequest, asker: Asker) -> ElectLeadersResponse:
        """Return that no named partition needs an election; for null, Kafka names only partitions that do: none."""
        if request.election_type not in range(len(_NO_LEADER)):
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
        missing = _NO_LEADER[request.election_type]
        topics = []
        for named in request.topics or ():
            elected = [await self._elected(named.name, index, missing, asker) for index in named.partitions]
            topics.append(ElectedTopic(named.name, elected))
        return ElectLeadersResponse(topics=topics)

    async def _elected(self, name: str, index: int, missing: ErrorCode, asker: Asker) -> ElectedPartition:
        try:
            topic = await self._partition(ElectLeadersRequest, name, index, asker)
        except DeltaMQError as error:
            return ElectedPartition(index, error_code_of(error), error.detail)
        if self._layout.shown(topic.topic)[index] is None:
            return ElectedPartition(index, missing, "no process serves the partition")
        return ElectedPartition(index, ErrorCode.ELECTION_NOT_NEEDED, "the process that serves it is its only replica")

    async def reassign(
        self, request: AlterPartitionReassignmentsRequest, asker: Asker
    ) -> AlterPartitionReassignmentsResponse:
        """Take assignments to nodes that exist: the store keeps the copies, and the service places partitions."""
        may_grow = request.allow_replication_factor_change
        topics = []
        for named in request.topics:
            done = [await self._reassigned(named.name, partition, may_grow, asker) for partition in named.partitions]
            topics.append(ReassignedTopic(named.name, done))
        return AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_grow, topics=topics)

    async def _reassigned(
        self, name: str, wanted: ReassigningPartition, may_grow: bool, asker: Asker
    ) -> ReassignedPartition:
        try:
            await self._partition(AlterPartitionReassignmentsRequest, name, wanted.index, asker)
            if wanted.replicas is None:
                raise NotFound(f"topic {name}: no partition is being moved", code="no_reassignment")
            self._layout.check_assignment([wanted.replicas])
            if len(wanted.replicas) > 1 and not may_grow:
                detail = f"topic {name}: partition {wanted.index} has one replica, and {len(wanted.replicas)} are named"
                raise Unprocessable(detail, code="invalid_replication_factor")
        except DeltaMQError as error:
            return ReassignedPartition(wanted.index, error_code_of(error), error.detail)
        return ReassignedPartition(wanted.index, ErrorCode.NONE)

    def reassignments(
        self, request: ListPartitionReassignmentsRequest, asker: Asker
    ) -> ListPartitionReassignmentsResponse:
        """Return that no partition is being moved."""
        try:
            asker.check(ListPartitionReassignmentsRequest)
        except DeltaMQError as error:
            return ListPartitionReassignmentsResponse(
                error_code=error_code_of(error), error_message=error.detail, topics=[]
            )
        return ListPartitionReassignmentsResponse(topics=[])

    async def move_logs(self, request: AlterReplicaLogDirsRequest, asker: Asker) -> AlterReplicaLogDirsResponse:
        """Accept moves of partitions to the folder where they are; there is no other."""
        topics = []
        for folder in request.dirs:
            for named in folder.topics:
                done = [await self._moved(folder.path, named.name, index, asker) for index in named.partitions]
                topics.append(MovedLogs(named.name, done))
        return AlterReplicaLogDirsResponse(topics=topics)

    async def _moved(self, folder: str, name: str, index: int, asker: Asker) -> MovedLog:
        try:
            asker.check(AlterReplicaLogDirsRequest, topic=name)
            if folder != self._warehouse:
                raise NotFound(f"{folder}: the one folder is {self._warehouse}", code="log_dir_not_found")
            await self._partition(AlterReplicaLogDirsRequest, name, index, asker)
        except DeltaMQError as error:
            return MovedLog(index, error_code_of(error))
        return MovedLog(index, ErrorCode.NONE)

    async def _partition(self, call: type[Message], name: str, index: int, asker: Asker) -> HostedTopic:
        """Return the topic of a partition, once the caller's rights and the partition are checked."""
        asker.check(call, topic=name)
        topic = await self._layout.topic(name)
        self._layout.check(topic, index)
        return topic
