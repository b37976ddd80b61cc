"""Calls about replicas, of which there is nothing to elect or to move (SPEC KAFKA-22).

The store keeps the copies of a partition, and the service places partitions itself: the process that serves a partition
is its only replica. What asks for that is answered as done, and what cannot be is refused as by Kafka.
"""

from __future__ import annotations

from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.places import Places
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.replica_messages import (
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
from deltamq.mq.errors import DeltaMQError, NotFound, Unprocessable

#: What is said of a partition without a leader, by the type of election: of the preferred one, or of any.
_NO_LEADER = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)


class Replicas:
    """The calls about replicas; used on the event loop."""

    def __init__(self, places: Places, *, warehouse: str) -> None:
        """`warehouse` is where the tables are, the one folder of logs."""
        self._places = places
        self._warehouse = warehouse

    async def elect(self, request: ElectLeadersRequest, asker: Asker) -> ElectLeadersResponse:
        """Return of each partition that it has the leader that it should have; of all, as Kafka, only others."""
        if request.election_type not in range(len(_NO_LEADER)):
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
        missing = _NO_LEADER[request.election_type]
        topics = []
        for named in request.topics or ():
            found = [await self._elected(named.name, index, missing, asker) for index in named.partitions]
            topics.append(ElectedTopic(named.name, found))
        return ElectLeadersResponse(topics=topics)

    async def _elected(self, name: str, index: int, missing: ErrorCode, asker: Asker) -> ElectedPartition:
        try:
            topic = await self._partition(ElectLeadersRequest, name, index, asker)
        except DeltaMQError as error:
            return ElectedPartition(index, error_code_of(error), error.detail)
        if self._places.shown(topic.topic)[index] is None:
            return ElectedPartition(index, missing, "no process serves the partition")
        return ElectedPartition(index, ErrorCode.ELECTION_NOT_NEEDED, "the process that serves it is its only replica")

    async def reassign(
        self, request: AlterPartitionReassignmentsRequest, asker: Asker
    ) -> AlterPartitionReassignmentsResponse:
        """Take assignments to nodes that exist: the store keeps the copies, and the service places partitions."""
        may_grow = request.allow_replication_factor_change
        topics = []
        for named in request.topics:
            done = [await self._reassigned(named.name, one, may_grow, asker) for one in named.partitions]
            topics.append(ReassignedTopic(named.name, done))
        return AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_grow, topics=topics)

    async def _reassigned(
        self, name: str, wanted: ReassigningPartition, may_grow: bool, asker: Asker
    ) -> ReassignedPartition:
        try:
            await self._partition(AlterPartitionReassignmentsRequest, name, wanted.index, asker)
            if wanted.replicas is None:
                raise NotFound(f"topic {name}: no partition is being moved", code="no_reassignment")
            self._places.check_assignment([wanted.replicas])
            if len(wanted.replicas) > 1 and not may_grow:
                detail = f"topic {name}: partition {wanted.index} has one replica, and {len(wanted.replicas)} are named"
                raise Unprocessable(detail, code="invalid_replication_factor")
        except DeltaMQError as error:
            return ReassignedPartition(wanted.index, error_code_of(error), error.detail)
        return ReassignedPartition(wanted.index, ErrorCode.NONE)

    def reassignments(
        self, request: ListPartitionReassignmentsRequest, asker: Asker
    ) -> ListPartitionReassignmentsResponse:
        """Return that no partition is on its way from one node to another."""
        try:
            asker.check(ListPartitionReassignmentsRequest)
        except DeltaMQError as error:
            return ListPartitionReassignmentsResponse(
                error_code=error_code_of(error), error_message=error.detail, topics=[]
            )
        return ListPartitionReassignmentsResponse(topics=[])

    async def move_logs(self, request: AlterReplicaLogDirsRequest, asker: Asker) -> AlterReplicaLogDirsResponse:
        """Take moves of partitions to where they are; there is no other folder."""
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
        """Return the topic of a partition that the caller may do this to, and that is there."""
        asker.check(call, topic=name)
        topic = await self._places.topic(name)
        self._places.check(topic, index)
        return topic
