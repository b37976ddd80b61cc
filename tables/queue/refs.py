"""The partitions of the queue's own logs: like all others, but in spaces that clients cannot produce to (SPEC MODEL-5).

| what                   | space | topic                           | partition                         | life  |
|------------------------|-------|---------------------------------|-----------------------------------|-------|
| checkpoints, acks      | sys   | `rmq_sys_REVIVE_LOG_{cluster}`  | `{topic}#{queue}@{broker}`        |       |
| offset commits         | sys   | `rmq_sys_OFFSETS_{cluster}`     | `{topic}@{broker}`                |       |
| lost messages          | sys   | `rmq_sys_LOST_{cluster}`        | `{topic}@{broker}`                |       |
| statistics of groups   | sys   | `rmq_sys_STATISTICS_{cluster}`  | `{topic}@{broker}`                |       |
| delayed messages       | sys   | `rmq_sys_DELAY_{cluster}`       | `{topic}@{broker}`                |       |
| marks about these      | sys   | `rmq_sys_DELAY_MARKS_{cluster}` | `{topic}@{broker}`                |       |
| acts, refusals         | sys   | `audit`                         | `audit@audit`                     |       |
| samples of gauges      | sys   | `history`                       | `history@history`                 |       |
| marks of quarantined   | sys   | `quarantine/{topic}`            | as the topic's partition          | topic |
| messages to be retried | retry | `{group}/{topic}`               | `%RETRY%{group}_{topic}@{broker}` | both  |
| dead letters           | dlq   | `{group}`                       | `%DLQ%{group}@{broker}`           | group |
| marks about these      | dlq   | `{group}`                       | `%DLQ_MARKS%{group}@{broker}`     | group |

Each broker has its own partitions, so that brokers in different processes do not race for the same one. The audit has
one partition for the warehouse, as the metadata has: administrative acts are few, and have one order. So has the
history, to which a process appends every five minutes at most.
"""

from __future__ import annotations

from typing import Final

from deltamq.mq.limits import REVIVE_QUEUES
from deltamq.mq.names import broker_of, partition_name
from deltamq.mq.queue.retry import DeadLetterTopic, RetryTopic, holds_marks
from deltamq.tables.paths import PartitionRef, Space

REVIVE_LOG: Final = "rmq_sys_REVIVE_LOG"
OFFSETS: Final = "rmq_sys_OFFSETS"
LOST: Final = "rmq_sys_LOST"
STATISTICS: Final = "rmq_sys_STATISTICS"
DELAY: Final = "rmq_sys_DELAY"
DELAY_MARKS: Final = "rmq_sys_DELAY_MARKS"

#: No topic's name has a slash.
_QUARANTINE: Final = "quarantine/"

#: What administrators did, and what was refused (SPEC SEC-40).
AUDIT: Final = PartitionRef(Space.SYS, "audit", "audit@audit")

#: Samples of lag, rates and other gauges (SPEC CONS-13).
HISTORY: Final = PartitionRef(Space.SYS, "history", "history@history")

#: Number of lives of one topic name for which a retry partition's generation has room, besides its group's epoch.
TOPIC_LIVES_MAX: Final = 1 << 20


def system_ref(kind: str, cluster: str, broker: str) -> PartitionRef:
    """Return the partition of OFFSETS, LOST, STATISTICS, DELAY or DELAY_MARKS on a broker."""
    topic = f"{kind}_{cluster}"
    return PartitionRef(Space.SYS, topic, partition_name(topic, broker))


def revive_ref(cluster: str, queue: int, broker: str) -> PartitionRef:
    """Return the partition of one queue of the revive log on a broker (SPEC POP-6)."""
    assert 0 <= queue < REVIVE_QUEUES, "ordered pops store no checkpoints"
    topic = f"{REVIVE_LOG}_{cluster}"
    return PartitionRef(Space.SYS, topic, partition_name(f"{topic}#{queue}", broker))


def revive_refs(cluster: str, broker: str) -> list[PartitionRef]:
    """Return the partitions of all queues of the revive log on a broker."""
    return [revive_ref(cluster, queue, broker) for queue in range(REVIVE_QUEUES)]


def retry_ref(group: str, group_epoch: int, topic: str, topic_generation: int, broker: str) -> PartitionRef:
    """Return a group's retry partition for a topic on a broker, in these lives of both (SPEC POP-11, POP-12).

    `group_epoch` is the group's own (`Group.epoch`), not its epoch in a partition: a reset keeps retried messages.
    """
    retry = RetryTopic(group, topic)
    life = retry_life(group_epoch, topic_generation)
    return PartitionRef(Space.RETRY, retry.storage_name, retry.partition(broker), life)


def retry_life(group_epoch: int, topic_generation: int) -> int:
    """Return the generation of a group's retry partitions for a topic, in these lives of both."""
    assert topic_generation < TOPIC_LIVES_MAX, "the topic's name was used a million times"
    return group_epoch * TOPIC_LIVES_MAX + topic_generation


def lives_of_retry(generation: int) -> tuple[int, int]:
    """Return the epoch of the group and the generation of the topic: the inverse of `retry_life`."""
    return divmod(generation, TOPIC_LIVES_MAX)


def dead_ref(group: str, group_epoch: int, broker: str) -> PartitionRef:
    """Return the partition of a group's dead letters on a broker, in this life of the group (SPEC RETRY-3)."""
    dead = DeadLetterTopic(group)
    return PartitionRef(Space.DLQ, dead.storage_name, dead.partition(broker), group_epoch)


def dead_marks_ref(group: str, group_epoch: int, broker: str) -> PartitionRef:
    """Return the partition of the marks of these dead letters (SPEC RETRY-8)."""
    dead = DeadLetterTopic(group)
    return PartitionRef(Space.DLQ, dead.storage_name, dead.marks(broker), group_epoch)


def is_dead_marks(ref: PartitionRef) -> bool:
    """Whether a partition holds marks of dead letters, and no dead letters."""
    return ref.space is Space.DLQ and holds_marks(ref.name)


def quarantine_life(topic: str, generation: int) -> tuple[Space, str, int]:
    """Return the life of the marks of a topic's quarantined messages."""
    return Space.SYS, f"{_QUARANTINE}{topic}", generation


def quarantine_marks_ref(partition: PartitionRef) -> PartitionRef:
    """Return the partition of the marks of a topic's partition: what of its quarantine was sent again or deleted."""
    space, topic, generation = quarantine_life(partition.topic, partition.generation)
    return PartitionRef(space, topic, partition.name, generation)


def marked_ref(marks: PartitionRef) -> PartitionRef | None:
    """Return the partition that such marks, or those of dead letters, are about; None for a log of something else."""
    if is_dead_marks(marks):
        return dead_ref(marks.topic, marks.generation, broker_of(marks.name))
    if marks.space is Space.SYS and marks.topic.startswith(_QUARANTINE):
        topic = marks.topic.removeprefix(_QUARANTINE)
        return PartitionRef(Space.TOPICS, topic, marks.name, marks.generation)
    return None
