"""The layout that Kafka's clients see: partition numbers, nodes, and the ids of topics (SPEC MODEL-6, KAFKA-18).

Partition i of a topic is the i-th of its route, which only grows at its end. The id of a topic is its id in the
metadata, as 16 bytes. A topic that is deleted and made again has another id: a client that names the former one is
refused.
"""

from __future__ import annotations

import uuid
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.messages.codec import NO_TOPIC_ID, Message
from deltamq.mq.errors import Conflict, NotFound, Refused, Unprocessable
from deltamq.mq.meta.brokers import META_ROLE, Host
from deltamq.mq.meta.topics import MetaState, Topic
from deltamq.mq.names import CONSUMER_OFFSETS, CONSUMER_OFFSETS_ID, broker_of, check_client_topic
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.queue_names import queue_name

#: The leader epoch of every partition: its log is never cut, whichever process serves it. Clients say -1 for none.
EPOCH: Final = 0
_NODE_MAX: Final = 0x7FFF_FFFF
_OFFSETS_ID: Final = uuid.UUID(CONSUMER_OFFSETS_ID).bytes


class Node(NamedTuple):
    """One service process as Kafka's clients see it: a broker. The same address has the same number for ever."""

    id: int
    host: str
    port: int


def address_of(text: str) -> Node:
    """Return the node of an address `HOST:PORT`."""
    host, _, port = text.rpartition(":")
    return Node(zlib.crc32(text.encode()) & _NODE_MAX, host.strip("[]"), int(port))


def node_of(host: Host | None) -> Node | None:
    """Return a process as a node; None if there is none, or it has no Kafka door."""
    return address_of(host.kafka) if host is not None and host.kafka else None


def check_epoch(current: int) -> None:
    """Raise `Conflict` (`leader_epoch_unknown`) if this leader epoch has not begun."""
    if current > EPOCH:
        raise Conflict(f"leader epoch {current} has not begun: it is {EPOCH}", code="leader_epoch_unknown")


def check_asked(name: str) -> str:
    """Return the name of a topic that a client asks about, else raise what `check_client_topic` does."""
    return name if name == CONSUMER_OFFSETS else check_client_topic(name)


def existing(name: str) -> str:
    """Return the name of a topic that should exist: as for Kafka, no topic has an invalid name.

    Raises
    ------
    NotFound
        `topic_not_found`
    Refused
        `system_name`
    """
    try:
        return check_client_topic(name)
    except Refused as error:
        if error.code != "invalid_topic_name":
            raise
        raise NotFound(f"there is no topic {name!r}: {error.detail}", code="topic_not_found") from None


class Layout:
    """The nodes of the cluster, and which of them leads a partition."""

    def __init__(self, topics: Topics, hosting: Hosting, meta: HostedMeta, *, here: str) -> None:
        """`here` is the address of this process."""
        self._topics = topics
        self._hosting = hosting
        self._meta = meta
        self.here = address_of(here)
        #: The id of the cluster and its warehouse, as Kafka writes ids.
        self.cluster = urlsafe_b64encode(uuid.UUID(meta.warehouse_id).bytes).decode().rstrip("=")
        #: The names of topics that clients call by their ids.
        self.ids = TopicIds(topics)

    def nodes(self) -> list[Node]:
        """Return the processes that Kafka's clients can reach, this one first."""
        others = {host.kafka for host in self._meta.now.brokers.hosts.values() if host.kafka}
        by_id = {node.id: node for node in (self.here, *map(address_of, sorted(others)))}
        return list(by_id.values())

    def check_assignment(self, partitions: Sequence[Sequence[int]]) -> None:
        """Check the nodes that a client names for new partitions: they exist, as many for each, and none twice.

        The service places partitions itself, as it does when a broker is down.
        """
        known = {node.id for node in self.nodes()}
        for index, nodes in enumerate(partitions):
            if not nodes or len(set(nodes)) != len(nodes) or len(nodes) != len(partitions[0]):
                problem = "needs nodes, none twice, and as many for each partition"
            elif set(nodes) <= known:
                continue
            else:
                problem = f"there are the nodes {sorted(known)}"
            raise Unprocessable(f"assignment {index}, {list(nodes)}: {problem}", code="invalid_assignment")

    def leader(self, partition: str) -> Node:
        """Return the node that serves the partition's broker; this one if that process has no Kafka door.

        Any process may append and read: the others' nodes are named so that clients spread over processes.
        """
        return node_of(self._hosting.owner(broker_of(partition))) or self.here

    def metadata(self) -> tuple[Node | None, int, int]:
        """Return the node that decides about metadata, the epoch since which it does, and the end of their log.

        The node is None while no process with a Kafka port does.
        """
        role = self._meta.now.brokers.roles.get(META_ROLE)
        return node_of(self._hosting.owner(META_ROLE)), 0 if role is None else role.epoch, self._meta.offset

    def served(self, topic: Topic) -> bool:
        """Whether Kafka's clients can use the topic."""
        return topic.world is None and topic.name != CONSUMER_OFFSETS

    def listed(self, asker: Asker) -> list[Topic]:
        """Return the topics that the caller sees in lists; who sees all of them and all groups, also their offsets."""
        is_shown, known = asker.shown("topic"), self._topics.state.topics.values()
        topics = [topic for topic in known if self.served(topic) and is_shown(topic.name)]
        return [*topics, self._topics.offsets.topic] if asker.sees_all else topics

    async def readable(self, call: type[Message], name: str, asker: Asker) -> HostedTopic:
        """Return a topic that the caller may do this to, which changes none; raises what `check` and `topic` do.

        Who reads committed offsets of all groups sees all topics and groups, too.
        """
        asker.check(call, topic=name)
        if name != CONSUMER_OFFSETS:
            return await self.topic(name)
        asker.require_all()
        return self._topics.offsets

    async def topic(self, name: str) -> HostedTopic:
        """Return a topic; raise `NotFound` if there is none, `Conflict` (`topic_global`) if it is a global one."""
        hosted = await self._topics.require(existing(name))
        if not self.served(hosted.topic):
            detail = f"topic {name} is a topic of several clusters: Kafka clients cannot use it"
            raise Conflict(detail, code="topic_global")
        return hosted

    def count(self, topic: Topic) -> int:
        """Return the number of partitions that clients see: of a static topic, its logical queues."""
        return len(topic.route.partitions) if topic.static is None else topic.static.total

    def shown(self, topic: Topic) -> list[Node | None]:
        """Return the leader of each partition that clients see; None for a queue whose mapping is not available."""
        queues = self._topics.queues_of(topic)
        if queues is None:
            return [self.leader(name) for name in topic.route.partitions]
        served = [queues.served.get(index) for index in range(queues.total)]
        return [None if queue is None else self.leader(queue.leader.partition) for queue in served]

    def queue(self, topic: HostedTopic, index: int) -> LogicalQueue | None:
        """Return the logical queue of a static topic; None for a plain topic.

        Raises
        ------
        NotFound
            `partition_not_found`
        Unavailable
            `queue_unserved`
        """
        queues = self._topics.queues(topic)
        if queues is None:
            return None
        if not 0 <= index < queues.total:
            raise NotFound(f"topic {topic.name} has no partition {index}", code="partition_not_found")
        return queues.require(queue_name(index), topic.name)

    def check(self, topic: HostedTopic, index: int) -> None:
        """Return if the topic has this partition; raises what `queue` does."""
        if self.queue(topic, index) is None:
            self.partition(topic, index)

    def partition(self, topic: HostedTopic, index: int) -> str:
        """Return the name of a plain topic's partition."""
        partitions = topic.route.partitions
        if not 0 <= index < len(partitions):
            raise NotFound(f"topic {topic.name} has no partition {index}", code="partition_not_found")
        return partitions[index]


def topic_id_of(topic: Topic) -> bytes:
    """Return the id of this life of a topic."""
    return uuid.UUID(topic.id).bytes


class TopicIds:
    """The names of topics by their ids; used on the event loop."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: dict[bytes, Topic] = {}
        #: The state whose topics these are.
        self._of: MetaState | None = None

    def find(self, wanted: bytes) -> str | None:
        """Return the name of the topic with this id, as far as this process knows."""
        if wanted == _OFFSETS_ID:
            return CONSUMER_OFFSETS
        state = self._topics.state
        known = self._known.get(wanted)
        if known is not None:
            topic = state.topics.get(known.name)
            if topic is not None and topic.id == known.id:
                return topic.name
        if state is self._of:
            return None
        self._of, self._known = state, {topic_id_of(topic): topic for topic in state.topics.values()}
        known = self._known.get(wanted)
        return None if known is None else known.name

    async def name(self, wanted: bytes) -> str:
        """Return the name of the topic with this id.

        Raises
        ------
        NotFound
            `topic_id_unknown`: no topic has it, or none any more.
        """
        name = self.find(wanted)
        if name is None and wanted != NO_TOPIC_ID:
            await self._topics.refresh()
            name = self.find(wanted)
        if name is None:
            detail = f"no topic has the id {uuid.UUID(bytes=wanted)}: it was deleted, or made again"
            raise NotFound(detail, code="topic_id_unknown", field="topic_id")
        return name
