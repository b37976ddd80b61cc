"""The tables that people query with SQL, which the job `merge` keeps: folders, columns, keys (SPEC POP-19, META-4).

| table                    | one row for each                              | from                |
|--------------------------|-----------------------------------------------|---------------------|
| `state/consumer_offsets` | partition that a group has begun to consume   | offsets logs        |
| `state/pop_checkpoints`  | checkpoint of a POP, with its state           | revive logs         |
| `state/lost_messages`    | range of offsets that a group lost            | logs of losses      |
| `state/group_statistics` | minute of a group in a topic, broker, process | logs of statistics  |
| `state/topics`           | topic                                         | metadata log        |
| `state/routes`           | range of logical partitions of a topic        | metadata log        |
| `state/groups`           | group                                         | metadata log        |
| `state/brokers`          | broker, and the meta role                     | metadata log        |
| `state/clients`          | known client of an exclusive group            | metadata log        |
| `state/allocations`      | partition that exclusive clients consume      | metadata log        |
| `state/moves`            | range of logical partitions that moved        | metadata log        |
| `state/queue_mappings`   | segment in a broker's mapping                 | metadata log        |

The columns are given as Arrow schemas, because both sides need them: Spark writes the tables, and a service reads them
without Spark when it starts (`tables.state.table`).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from deltamq.mq.queue.progress import Delivered
from deltamq.mq.statistics import Consumed
from deltamq.tables.schema import TIME

CONSUMER_OFFSETS: Final = "state/consumer_offsets"
POP_CHECKPOINTS: Final = "state/pop_checkpoints"
LOST_MESSAGES: Final = "state/lost_messages"
GROUP_STATISTICS: Final = "state/group_statistics"
TOPICS: Final = "state/topics"
ROUTES: Final = "state/routes"
GROUPS: Final = "state/groups"
BROKERS: Final = "state/brokers"
CLIENTS: Final = "state/clients"
ALLOCATIONS: Final = "state/allocations"
PRINCIPALS: Final = "state/principals"
KEYS: Final = "state/keys"
ACLS: Final = "state/acls"
QUOTAS: Final = "state/quotas"
SCHEMAS: Final = "state/schemas"
MOVES: Final = "state/moves"
QUEUE_MAPPINGS: Final = "state/queue_mappings"

#: The columns that name the lane of a row: the fields of `mq.queue.checkpoint.LaneKey`.
LANE_KEY: Final = ("topic_id", "group", "retry", "partition")
CHECKPOINT_KEY: Final = (*LANE_KEY, "epoch", "start_offset", "pop_time")
LOST_KEY: Final = (*LANE_KEY, "low", "high", "reason")
STATISTICS_KEY: Final = ("minute", "group", "topic_id", "broker", "process")


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_LANE: Final = [
    _required("group", pa.string()),
    # Null while there are only records about a checkpoint, not the checkpoint itself.
    pa.field("topic", pa.string()),
    _required("topic_id", pa.string()),
    # Whether this is the group's retry partition for the topic, or the topic's own partition.
    _required("retry", pa.bool_()),
    _required("partition", pa.string()),
    _required("broker", pa.string()),
]

CONSUMER_OFFSETS_SCHEMA: Final = pa.schema(
    [
        *_LANE,
        # The group's epoch in the partition: a reset begins a new one.
        _required("epoch", pa.int64()),
        _required("committed_offset", pa.int64()),
        # Ordered groups only: ranges [low, high) above the committed offset that are finished ...
        pa.field("done", pa.list_(pa.struct([("low", pa.int64()), ("high", pa.int64())]))),
        # ... and the leases of messages that were delivered but not finished. Exclusive groups: the number of attempts
        # in place at the message at the committed offset, without a lease (`visible_ms` is 0).
        pa.field("delivered", pa.list_(pa.struct([(name, pa.int64()) for name in Delivered._fields]))),
        _required("merged_at", TIME),
        # The text that was committed with this very offset, null without one; of several the greatest number counts.
        pa.field("metadata", pa.string()),
        pa.field("metadata_number", pa.int64()),
    ]
)

POP_CHECKPOINTS_SCHEMA: Final = pa.schema(
    [
        *_LANE,
        _required("epoch", pa.int64()),
        _required("start_offset", pa.int64()),
        _required("pop_time", TIME),
        # The number of messages, their offsets relative to the first (null: contiguous), and their delivery attempts.
        pa.field("num", pa.int32()),
        pa.field("diffs", pa.list_(pa.int64())),
        pa.field("attempts", pa.list_(pa.int32())),
        pa.field("invisible_ms", pa.int64()),
        # When messages in flight are delivered again; null until a record says it.
        pa.field("revive_time", TIME),
        # Bit maps over the messages: acknowledged, taken over by a newer checkpoint, handled by the revive job.
        _required("acked", pa.int64()),
        _required("replaced", pa.int64()),
        _required("done", pa.int64()),
        # The number of messages that are still in flight.
        _required("in_flight", pa.int32()),
        pa.field("dead_reason", pa.string()),
        # Whether the messages were given back as failed, so that no client holds them.
        pa.field("given_back", pa.bool_()),
        # Where the checkpoint lies in the revive log.
        pa.field("revive_queue", pa.int32()),
        pa.field("revive_offset", pa.int64()),
        _required("merged_at", TIME),
        # The revive time while messages are in flight, else null. Delta keeps its least and greatest value for each
        # data file, so a reader that looks for due checkpoints opens only files that hold some.
        pa.field("due_time", TIME),
    ]
)

LOST_MESSAGES_SCHEMA: Final = pa.schema(
    [
        *_LANE,
        # The lost offsets [low, high).
        _required("low", pa.int64()),
        _required("high", pa.int64()),
        _required("reason", pa.string()),
        _required("lost_time", TIME),
        _required("merged_at", TIME),
    ]
)

GROUP_STATISTICS_SCHEMA: Final = pa.schema(
    [
        # When the minute began.
        _required("minute", TIME),
        _required("group", pa.string()),
        _required("topic", pa.string()),
        _required("topic_id", pa.string()),
        _required("broker", pa.string()),
        # The service process that counted.
        _required("process", pa.string()),
        *(_required(name, pa.int64()) for name in Consumed.__struct_fields__),
        _required("merged_at", TIME),
    ]
)

TOPICS_SCHEMA: Final = pa.schema(
    [
        _required("topic", pa.string()),
        _required("topic_id", pa.string()),
        # The number of earlier lives of the topic's name.
        _required("generation", pa.int64()),
        _required("partitions", pa.int32()),
        _required("route_epoch", pa.int64()),
        _required("order_strategy", pa.string()),
        _required("retention_ms", pa.int64()),
        pa.field("retention_bytes", pa.int64()),
        _required("message_type", pa.string()),
        pa.field("flush", pa.string()),
        # Null for the service's own setting.
        pa.field("commit_window_ms", pa.int64()),
        _required("created_time", TIME),
        # Static topics only, else null: the number of logical queues, and the epoch of their mappings.
        pa.field("static", pa.bool_()),
        pa.field("total_queues", pa.int32()),
        pa.field("mapping_epoch", pa.int64()),
        # By which hash keys go to partitions: lp, `hash` of Spark SQL, or kafka, Murmur2 of Kafka's clients.
        _required("partitioner", pa.string()),
    ]
)

#: What is allowed at a broker or partition: everything again from `access_until` on, if it is not null.
_ACCESS: Final = (
    pa.field("readable", pa.bool_()),
    pa.field("writable", pa.bool_()),
    pa.field("access_reason", pa.string()),
    pa.field("access_until", TIME),
)

ROUTES_SCHEMA: Final = pa.schema(
    [
        _required("topic", pa.string()),
        _required("topic_id", pa.string()),
        _required("route_epoch", pa.int64()),
        _required("partition", pa.string()),
        _required("broker", pa.string()),
        # The partition's place in the route.
        _required("number", pa.int32()),
        # Logical partitions [lp_low, lp_high); a key's is `pmod(hash(key), 1024)`. Null if the partition owns none,
        # as in topics with the partitioner kafka: there a key's partition has the number `murmur2(key) % partitions`.
        pa.field("lp_low", pa.int32()),
        pa.field("lp_high", pa.int32()),
        *_ACCESS,
    ]
)

GROUPS_SCHEMA: Final = pa.schema(
    [
        _required("group", pa.string()),
        # The number of the group's life: what the group did under a lower epoch is void.
        _required("epoch", pa.int64()),
        _required("consume_strategy", pa.string()),
        # false, true or key.
        _required("ordered", pa.string()),
        _required("consume_from", pa.string()),
        _required("max_attempts", pa.int32()),
        # JSON as the API writes it.
        _required("retry_policy", pa.string()),
        _required("invisible_ms", pa.int64()),
        _required("allocation_strategy", pa.string()),
        _required("created_time", TIME),
    ]
)

BROKERS_SCHEMA: Final = pa.schema(
    [
        # The broker's name; `/meta` is the meta role, which decides about routes, groups and allocations.
        _required("broker", pa.string()),
        # Grows each time a process takes the broker over.
        _required("epoch", pa.int64()),
        # The process that hosts it; null while none does.
        pa.field("host", pa.string()),
        pa.field("address", pa.string()),
        # Whether that process was started for another broker, and hosts this one only until its own process is back.
        pa.field("stand_in", pa.bool_()),
        *_ACCESS,
    ]
)

CLIENTS_SCHEMA: Final = pa.schema(
    [
        _required("group", pa.string()),
        _required("client", pa.string()),
        # Distinguishes this stay of the client in the group from earlier and later ones.
        _required("joined", pa.int64()),
        _required(
            "topics",
            pa.list_(pa.struct([("topic", pa.string()), ("in_order", pa.bool_()), ("tags", pa.string())])),
        ),
        # Whether the client has no partitions any more, but may still be finishing messages that it holds.
        _required("leaving", pa.bool_()),
        _required("since_time", TIME),
    ]
)

ALLOCATIONS_SCHEMA: Final = pa.schema(
    [
        _required("group", pa.string()),
        _required("topic", pa.string()),
        _required("topic_id", pa.string()),
        # Grows with each change of the topic's allocation in the group.
        _required("epoch", pa.int64()),
        _required("partition", pa.string()),
        _required("broker", pa.string()),
        # The client that may pull; null while the group has no client for the partition.
        pa.field("client", pa.string()),
        # Clients that had the partition before and may still be finishing messages.
        _required("earlier", pa.list_(pa.string())),
    ]
)

PRINCIPALS_SCHEMA: Final = pa.schema(
    [
        _required("principal", pa.string()),
        pa.field("note", pa.string()),
        _required("created_time", TIME),
        # Since when it may do nothing; null: it may do what its rules grant.
        pa.field("disabled_time", TIME),
    ]
)

#: Keys that were not revoked. Neither a secret nor its hash is here.
KEYS_SCHEMA: Final = pa.schema(
    [
        _required("key_id", pa.string()),
        _required("principal", pa.string()),
        _required("created_time", TIME),
        # When it ends; null: it stays until it is revoked.
        pa.field("until_time", TIME),
    ]
)

ACLS_SCHEMA: Final = pa.schema(
    [
        _required("acl_id", pa.string()),
        _required("principal", pa.string()),
        # allow or deny: a rule that denies wins.
        _required("effect", pa.string()),
        # topic, group or cluster.
        _required("resource", pa.string()),
        # A name, or the beginning of names and a `*`.
        _required("pattern", pa.string()),
        _required("verbs", pa.list_(pa.string())),
    ]
)

QUOTAS_SCHEMA: Final = pa.schema(
    [
        _required("principal", pa.string()),
        # What it may use of each process, per second; null: without a bound.
        pa.field("requests_per_s", pa.int64()),
        pa.field("bytes_in_per_s", pa.int64()),
        pa.field("bytes_out_per_s", pa.int64()),
    ]
)

SCHEMAS_SCHEMA: Final = pa.schema(
    [
        _required("subject", pa.string()),
        _required("version", pa.int32()),
        # The id that messages carry: one for each text.
        _required("id", pa.int32()),
        # AVRO, JSON, PROTOBUF or COLUMNS.
        _required("schema_type", pa.string()),
        _required("schema", pa.string()),
        _required(
            "references",
            pa.list_(pa.struct([("name", pa.string()), ("subject", pa.string()), ("version", pa.int32())])),
        ),
        # Whether it is deleted, but not for good.
        _required("deleted", pa.bool_()),
    ]
)

MOVES_SCHEMA: Final = pa.schema(
    [
        _required("topic", pa.string()),
        _required("topic_id", pa.string()),
        # The epoch of the route after the expansion.
        _required("route_epoch", pa.int64()),
        _required("source", pa.string()),
        _required("target", pa.string()),
        # Logical partitions [lp_low, lp_high).
        _required("lp_low", pa.int32()),
        _required("lp_high", pa.int32()),
        # A group gets messages from `target` once it has consumed `source` up to this offset; null: not sealed yet.
        pa.field("end_offset", pa.int64()),
    ]
)

QUEUE_MAPPINGS_SCHEMA: Final = pa.schema(
    [
        _required("topic", pa.string()),
        _required("topic_id", pa.string()),
        # The broker that holds the mapping, and the one that it was written for; a mapping that was copied is ignored.
        _required("holder", pa.string()),
        _required("broker", pa.string()),
        _required("epoch", pa.int64()),
        _required("total_queues", pa.int32()),
        _required("version", pa.int32()),
        # Null from here on in the one row of a broker that hosts nothing.
        pa.field("queue", pa.int32()),
        # hosted: the broker leads the queue. copy: a backup, because it led the queue before.
        pa.field("role", pa.string()),
        # Whether messages are read by this row: the mapping is whole, and the queue's messages go to its leader.
        pa.field("served", pa.bool_()),
        pa.field("gen", pa.int32()),
        pa.field("partition", pa.string()),
        # The logical offset of the segment's first message; -1: not decided yet.
        pa.field("logic_offset", pa.int64()),
        pa.field("start_offset", pa.int64()),
        # The offset behind the last message; -1: more may be appended.
        pa.field("end_offset", pa.int64()),
        pa.field("start_time", TIME),
        pa.field("end_time", TIME),
        pa.field("update_time", TIME),
    ]
)

#: The columns of all state tables.
STATE_TABLES: Final = {
    CONSUMER_OFFSETS: CONSUMER_OFFSETS_SCHEMA,
    POP_CHECKPOINTS: POP_CHECKPOINTS_SCHEMA,
    LOST_MESSAGES: LOST_MESSAGES_SCHEMA,
    GROUP_STATISTICS: GROUP_STATISTICS_SCHEMA,
    TOPICS: TOPICS_SCHEMA,
    ROUTES: ROUTES_SCHEMA,
    GROUPS: GROUPS_SCHEMA,
    BROKERS: BROKERS_SCHEMA,
    CLIENTS: CLIENTS_SCHEMA,
    ALLOCATIONS: ALLOCATIONS_SCHEMA,
    MOVES: MOVES_SCHEMA,
    QUEUE_MAPPINGS: QUEUE_MAPPINGS_SCHEMA,
    PRINCIPALS: PRINCIPALS_SCHEMA,
    KEYS: KEYS_SCHEMA,
    ACLS: ACLS_SCHEMA,
    QUOTAS: QUOTAS_SCHEMA,
    SCHEMAS: SCHEMAS_SCHEMA,
}
