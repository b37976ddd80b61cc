"""All calls of Kafka's clients; every request passes here.

Each call gets its caller, and checks what it needs (`api/kafka/messages/apis.py`), for each topic and group that it
names.
"""

from __future__ import annotations

from collections.abc import Awaitable

from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.access.session import Session, mechanisms_of
from deltamq.api.kafka.calls.client_quotas import ClientQuotaCalls
from deltamq.api.kafka.calls.cluster import Cluster, Replicas
from deltamq.api.kafka.calls.commit_records import CommitRecords
from deltamq.api.kafka.calls.fetching import Fetching
from deltamq.api.kafka.calls.group_lists import GroupLists
from deltamq.api.kafka.calls.group_offsets import OffsetChanges, OffsetFetches
from deltamq.api.kafka.calls.layout import Layout
from deltamq.api.kafka.calls.members import Members
from deltamq.api.kafka.calls.partition_bounds import OffsetLists, Removal
from deltamq.api.kafka.calls.producing import Producing, Reply
from deltamq.api.kafka.calls.topics import Configs, TopicCalls
from deltamq.api.kafka.calls.users import Users
from deltamq.api.kafka.messages import cluster_messages as cluster
from deltamq.api.kafka.messages import group_messages as group
from deltamq.api.kafka.messages import log_messages as log
from deltamq.api.kafka.messages import user_messages as user
from deltamq.api.kafka.messages.apis import Frame, offered, unknown_version
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.node_settings import shown_of_node
from deltamq.api.sending.commit_defaults import CommitDefaults
from deltamq.api.sending.named_appender import PartitionAppender, QueueAppender
from deltamq.api.service.service import Service
from deltamq.api.wire.request import Ticket


class Door:
    """The calls of one service; used on the event loop."""

    def __init__(self, service: Service, advertised: str) -> None:
        """`advertised` is the address, `HOST:PORT`, under which clients reach this process."""
        topics, groups, audit = service.topics, service.groups, service.audit
        layout = Layout(topics, service.hosting, service.meta, here=advertised)
        self._producing = _producing(service, layout)
        self._fetching = _fetching(service, layout, self._producing)
        self._offset_lists = OffsetLists(layout, topics, service.partitions, service.progress)
        settings = service.settings
        self._cluster = Cluster(
            layout,
            topics,
            service.partitions,
            warehouse=service.config.warehouse.uri,
            auto_create=settings.auto_create_topics,
            partitions=settings.kafka_partitions,
        )
        self._replicas = Replicas(layout, warehouse=service.config.warehouse.uri)
        self._users = Users(service.meta, service.owners, audit, service.now_ms)
        self._quotas = ClientQuotaCalls(service.meta, service.owners, audit)
        self._removal = Removal(
            layout,
            topics,
            service.partitions,
            service.progress,
            audit,
            row_group_rows=service.config.log.row_group_rows,
            now_ms=service.now_ms,
        )

        async def delete(name: str) -> None:
            await service.delete_topic(name)
            self._cluster.deleted(name)

        self._topics = TopicCalls(
            layout, topics, delete, audit, service.registry, default_partitions=settings.kafka_partitions
        )
        offered = mechanisms_of(is_private=True, has_kerberos=bool(settings.kafka_kerberos_keytab))
        node = shown_of_node(settings, layout.here.id, advertised, offered)
        self._configs = Configs(layout, topics, audit, service.registry, node)
        self._members = Members(groups, service.hosting, session_ms_min=settings.kafka_session_min_ms)
        self._lists = GroupLists(self._members, groups, service.hosting, audit)
        self._committed = OffsetFetches(
            layout, topics, service.meta, groups, service.lanes, service.moved, service.progress
        )
        self._offsets = OffsetChanges(
            layout,
            self._members,
            self._committed,
            groups,
            service.group_commits,
            service.progress,
            service.owners,
            audit,
        )

    def begin_stop(self) -> None:
        """Let no member of a group wait any longer, and read nothing ahead."""
        self._members.end()
        self._fetching.begin_stop()

    def begin_at_once(self, frame: Frame, asker: Asker, ticket: Ticket, reply: Reply) -> bool:
        """Begin an append that need not wait for anything; return False for other requests, which are not begun.

        Its batches are in the queues of their partitions when this returns, and the bytes that they take beyond the
        request are reserved in `ticket`.
        """
        request = frame.request
        return isinstance(request, log.ProduceRequest) and self._producing.begin_at_once(request, asker, ticket, reply)

    async def begin(self, frame: Frame, session: Session, asker: Asker, ticket: Ticket) -> Awaitable[Message | None]:
        """Begin a request that others may not overtake; return what waits for its answer.

        The answer is None if the client wants none. When this returns, appends are in the queues of their partitions,
        and a call that authenticates has done so. `ticket` is as for `begin_at_once`.
        """
        match frame.request:
            case log.ProduceRequest() as request:
                return await self._producing.begin(request, asker, ticket)
            case user.SaslHandshakeRequest() as request:
                return _at_once(session.handshake(request, frame.version))
            case user.SaslAuthenticateRequest() as request:
                return _at_once(await session.authenticate(request))
        raise AssertionError(f"call {frame.api.key} may be overtaken")

    async def answer(self, frame: Frame, ticket: Ticket, host: str, asker: Asker) -> Message:
        """Answer a request that others may overtake.

        The bytes that the answer takes are reserved in `ticket`; `host` is where the client is, `asker` the caller.
        """
        match frame.request:
            case log.FetchRequest() as request:
                return await self._fetching.fetch(request, ticket, asker)
            case log.ListOffsetsRequest() as request:
                return await self._offset_lists.offsets(request, frame.version, asker)
            case log.OffsetForLeaderEpochRequest() as request:
                return await self._offset_lists.ends_of_epochs(request, asker)
            case cluster.MetadataRequest() as request:
                return await self._cluster.metadata(request, frame.version, asker)
            case cluster.DescribeClusterRequest() as request:
                return self._cluster.describe(request, asker)
            case cluster.DescribeQuorumRequest() as request:
                return self._cluster.quorum(request, asker)
            case cluster.DescribeLogDirsRequest() as request:
                return await self._cluster.log_dirs(request, asker)
            case cluster.DescribeTopicPartitionsRequest() as request:
                return await self._cluster.partitions(request, asker)
            case log.InitProducerIdRequest() as request:
                return self._producing.init_producer_id(request, asker)
            case cluster.ApiVersionsRequest():
                return offered() if frame.is_known else unknown_version()
        answer = await self._of_member(frame, host, asker) or await self._of_group(frame, asker)
        return answer or await self._of_replica_or_user(frame, asker) or await self._administered(frame, asker)

    async def _of_member(self, frame: Frame, host: str, asker: Asker) -> Message | None:
        match frame.request:
            case group.FindCoordinatorRequest() as request:
                return self._members.coordinator(request, frame.version, asker)
            case group.JoinGroupRequest() as request:
                return await self._members.join(request, frame, host, asker)
            case group.SyncGroupRequest() as request:
                return await self._members.sync(request, frame.version, asker)
            case group.HeartbeatRequest() as request:
                return self._members.heartbeat(request, asker)
            case group.LeaveGroupRequest() as request:
                return self._members.leave(request, frame.version, asker)
        return None

    async def _of_group(self, frame: Frame, asker: Asker) -> Message | None:
        match frame.request:
            case group.OffsetCommitRequest() as request:
                return await self._offsets.commit(request, frame.version, asker)
            case group.OffsetFetchRequest() as request:
                return await self._committed.fetch(request, frame.version, asker)
            case group.OffsetDeleteRequest() as request:
                return await self._offsets.delete(request, asker)
            case group.ListGroupsRequest() as request:
                return self._lists.listed(request, asker)
            case group.DescribeGroupsRequest() as request:
                return self._lists.described(request, frame.version, asker)
            case group.DeleteGroupsRequest() as request:
                return await self._lists.delete(request, asker)
        return None

    async def _of_replica_or_user(self, frame: Frame, asker: Asker) -> Message | None:
        match frame.request:
            case log.ElectLeadersRequest() as request:
                return await self._replicas.elect(request, asker)
            case log.AlterPartitionReassignmentsRequest() as request:
                return await self._replicas.reassign(request, asker)
            case log.ListPartitionReassignmentsRequest() as request:
                return self._replicas.reassignments(request, asker)
            case log.AlterReplicaLogDirsRequest() as request:
                return await self._replicas.move_logs(request, asker)
            case user.DescribeClientQuotasRequest() as request:
                return self._quotas.described(request, asker)
            case user.AlterClientQuotasRequest() as request:
                return await self._quotas.altered(request, asker)
            case user.DescribeUserScramCredentialsRequest() as request:
                return self._users.credentials(request, asker)
            case user.AlterUserScramCredentialsRequest() as request:
                return await self._users.alter_credentials(request, asker)
        return None

    async def _administered(self, frame: Frame, asker: Asker) -> Message:
        match frame.request:
            case cluster.CreateTopicsRequest() as request:
                return await self._topics.create(request, asker)
            case cluster.DeleteTopicsRequest() as request:
                return await self._topics.delete(request, asker)
            case log.DeleteRecordsRequest() as request:
                return await self._removal.delete(request, asker)
            case cluster.CreatePartitionsRequest() as request:
                return await self._topics.grow(request, asker)
            case cluster.DescribeConfigsRequest() as request:
                return await self._configs.describe(request, asker)
            case cluster.ListConfigResourcesRequest() as request:
                return self._configs.resources(request, frame.version, asker)
            case cluster.AlterConfigsRequest() as request:
                return await self._configs.replace(request, asker)
            case cluster.IncrementalAlterConfigsRequest() as request:
                return await self._configs.alter(request, asker)
        raise AssertionError(f"call {frame.api.key} is offered, so it has an answer")


def _producing(service: Service, layout: Layout) -> Producing:
    topics, partitions = service.topics, service.partitions
    return Producing(
        layout,
        topics,
        partitions,
        PartitionAppender(topics, service.meta, partitions, service.sealer),
        QueueAppender(topics, service.meta, partitions, service.sealer),
        service.metrics,
        defaults=CommitDefaults.of(service.config, service.partitions, service.admission),
        now_ms=service.now_ms,
    )


def _fetching(service: Service, layout: Layout, producing: Producing) -> Fetching:
    return Fetching(
        layout,
        service.topics,
        service.partitions,
        service.reader,
        service.queue_reader,
        CommitRecords(service.topics, service.meta, service.partitions),
        service.metrics,
        producing.sent,
    )


async def _at_once(answer: Message) -> Message:
    return answer
