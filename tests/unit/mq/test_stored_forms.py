"""What is stored stays as it is: other releases read what this one writes, and it reads theirs (META-4, POP-6).

`stored_forms.jsonl` holds one line for each example: what the release before msgspec wrote for the value below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from deltamq.mq.audit import ActBegun, ActEnded, RefusalCount
from deltamq.mq.audit import record_from_json as audit_from_json
from deltamq.mq.audit import record_to_json as audit_to_json
from deltamq.mq.auth.client_quotas import ClientQuota
from deltamq.mq.auth.keys import Key, Password, Scram
from deltamq.mq.auth.principals import Principal, Quota, rule_of
from deltamq.mq.auth.state import (
    AclPut,
    AclRemoved,
    AuthState,
    ClientQuotaPut,
    KeyPut,
    KeyRevoked,
    PasswordPut,
    PasswordRemoved,
    PrincipalDisabled,
    PrincipalEnabled,
    PrincipalPut,
    PrincipalRemoved,
    QuotaPut,
)
from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.mq.meta.brokers import Host, HostAsked, HostLeft, HostRegistered, HostRenewed, RoleTaken
from deltamq.mq.meta.fold import Meta, event_from_json, event_to_json
from deltamq.mq.meta.group import ClientForgotten, Group, GroupBegan, GroupDeleted, GroupPut, OffsetsReset, Pause
from deltamq.mq.meta.group_settings import GroupSettings
from deltamq.mq.meta.moved_keys import KeysMoved, MoveSealed, moves_between
from deltamq.mq.meta.online import Allocated, ClientGone, ClientPut, OnlineClient, Subscription
from deltamq.mq.meta.snapshot import MetaSnapshot
from deltamq.mq.meta.topic_settings import TopicSettings
from deltamq.mq.meta.topics import StaticQueues, Topic, TopicDeleted, TopicPut
from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, LaneKey, Pop, Replaced, Span
from deltamq.mq.queue.delay import Cancelled, Ended, mark_from_json, mark_to_json
from deltamq.mq.queue.progress import Committed, Delivered, OffsetRecord, Start, StartKind
from deltamq.mq.queue.retry import Exponential, Fixed
from deltamq.mq.queue.revive import LostReason, LostRecord
from deltamq.mq.queue.revive_log import Ack, Done, record_from_json, record_to_json
from deltamq.mq.routing import Route, expand, new_route
from deltamq.mq.schemas.registry import (
    Reference,
    RegistryState,
    Schema,
    SchemaDeleted,
    SchemaRegistered,
    SubjectRules,
    SubjectRulesPut,
)
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.mappings import MappingPut, MappingRemoved, QueueMapping, SegmentsDropped
from deltamq.mq.static.segments import Segment, Stay
from deltamq.mq.streams import StreamOffset, TopicOffset
from tests.unit.mq.meta.test_snapshot import PRELUDE, decided

Read = Callable[[str, bytes], object]
Written = Callable[[Any], tuple[str, object]]


class Family(NamedTuple):
    """How the values of one log are read, from a tag and a body, and what is written for them."""

    read: Read
    written: Written
    #: That of damage.
    code: str


META = Family(event_from_json, lambda event: (event.kind, json.loads(event_to_json(event))), "meta_event_corrupt")
SNAPSHOT = Family(
    lambda _, body: MetaSnapshot.from_json(body),
    lambda one: (one.kind, json.loads(one.to_json())),
    "meta_event_corrupt",
)
REVIVE = Family(record_from_json, lambda record: tagged(*record_to_json(record)), "revive_record_corrupt")
OFFSETS = Family(
    lambda _, body: OffsetRecord.from_json(body),
    lambda record: ("offset", json.loads(record.to_json())),
    "offset_record_corrupt",
)
LOSSES = Family(
    lambda _, body: LostRecord.from_json(body),
    lambda record: ("lost", json.loads(record.to_json())),
    "lost_record_corrupt",
)
MARKS = Family(mark_from_json, lambda mark: tagged(*mark_to_json(mark)), "delay_mark_corrupt")
AUDITS = Family(audit_from_json, lambda record: tagged(*audit_to_json(record)), "audit_record_corrupt")
STREAMS = Family(
    lambda _, body: StreamOffset.from_json(json.loads(body)),
    lambda offset: ("stream", offset.to_json()),
    "stream_offset_corrupt",
)
ROUTES = Family(
    lambda _, body: Route.from_json(json.loads(body)),
    lambda route: ("route", route.to_json()),
    "route_corrupt",
)


def tagged(tag: str, body: bytes) -> tuple[str, object]:
    return tag, json.loads(body)


AB = ("A", "B")
PASSWORD = Password(
    principal="ada@x.org",
    mechanism="SCRAM-SHA-512",
    salt="c2FsdA==",
    iterations=4_096,
    stored_key="c3RvcmVk",
    server_key="c2VydmVy",
    created_ms=5,
)
CLIENTS = ClientQuota(user="ada@x.org", client_id="", bytes_in_per_s=5)
HOST = Host(id="one", address="http://a:1", brokers=AB, renewal=3, load=7, machine="boot-1", kafka="a:9092")
TWO_PARTITIONS = new_route("orders", 2, AB)
FOUR_PARTITIONS = expand(TWO_PARTITIONS, "orders", 4, AB)
STRICT = TopicSettings(order_strategy="strict", retention_ms=7_000, message_type="größe", flush="sync")
TOPIC = Topic(name="orders", id="id-1", route=FOUR_PARTITIONS, settings=STRICT, created_ms=5, generation=2)
EXCLUSIVE = GroupSettings(
    consume_strategy="exclusive",
    allocation_strategy="circle",
    order="key",
    consume_from=Start(StartKind.TIME, 1_700_000_000_123),
    max_attempts=3,
    retry_policy=Exponential(initial_ms=10, multiplier=1.5, max_ms=1_000, jitter=0.25),
    invisible_ms=11_000,
)
FIXED = GroupSettings(order=True, consume_from=Start(StartKind.LAST), retry_policy=Fixed(40))
LANE = LaneKey("id-1", "billing", False, "orders@A")
RETRIES = LaneKey("id-1", "billing", True, "%RETRY%billing_orders@B")
CLIENT = OnlineClient(
    id="c1",
    joined=4,
    topics={
        "orders": Subscription(order=True, tags="ä||🚀", filter="region = 'eu'"),
        "refunds": Subscription(order=False, tags="*"),
    },
    leaving=False,
    since_ms=9,
)
POP = Pop(
    topic="orders",
    topic_id="id-1",
    group="billing",
    epoch=3,
    partition="orders#1@A",
    retry=True,
    pop_time_ms=1_000,
    invisible_ms=60_000,
    revive_queue=5,
)
KEY = CheckpointKey("id-1", "billing", 3, False, "orders@A", 7, 900)
LEASES = (Delivered(122, 1, 50, 90), Delivered(123, 2, 60, 0))

CHAIN = (
    Segment(gen=0, partition="orders@A", logic_offset=0, end_offset=5, start_ms=1, end_ms=7, update_ms=7),
    Segment(gen=1, partition="orders#2@B", logic_offset=10_000, start_ms=6, update_ms=7),
)
MAPPING = QueueMapping(broker="B", epoch=6, total_queues=2, hosted={0: CHAIN}, copies={1: CHAIN[1:]})
STATIC = StaticQueues(owners=((0, 512, 0), (512, 1024, 1)), epoch=6, brokers=("A", "B"), made=3)
WORLD = GlobalQueues(
    id="w",
    home="east",
    here="west",
    epoch=8,
    clusters=("east", "west"),
    queues=(
        (
            Stay(cluster="east", local_start=0, logic_offset=0, local_end=7, start_ms=1, end_ms=8),
            Stay(cluster="west", local_start=3, logic_offset=-1, at_once=True, start_ms=8),
        ),
        (Stay(cluster="west", local_start=0, logic_offset=0, start_ms=1),),
    ),
    held_by=("east", "west"),
)
REMAPPED = Route(2, ("orders@A", "orders#1@B", "orders#2@B"), ((0, 512, 2), (512, 1024, 1)), retired=(0,))
TWO_QUEUES = Route(1, ("orders@A", "orders#1@B"), ((0, 512, 0), (512, 1024, 1)))

RULE = rule_of(
    principal="ada@x.org", effect="deny", resource="topic", pattern="orders.*", verbs=("subscribe", "publish")
)
ID = "00112233aabbccdd"
AVRO = Schema(schema='"größe"', references=(Reference("other", "refunds", 3),))
REGISTRY = RegistryState().apply_all(
    [
        SchemaRegistered(subject="orders", version=1, id=1, schema=AVRO),
        SchemaRegistered(subject="refunds", version=1, id=2, schema=Schema(schema_type="JSON", schema="{}")),
        SchemaDeleted(subject="orders", versions=(1,), permanent=False),
        SubjectRulesPut(subject="orders", rules=SubjectRules(compatibility="NONE")),
    ]
)

EXAMPLES: Mapping[str, tuple[Family, object]] = {
    "a host": (META, HostRegistered(host=HOST)),
    "a renewal": (META, HostRenewed(id="one", renewal=4, load=9)),
    "a host that was asked": (META, HostAsked(id="one")),
    "a host that stopped": (META, HostLeft(id="one", expired=False)),
    "a host that is gone": (META, HostLeft(id="one", expired=True)),
    "a role": (META, RoleTaken(role="/meta", host="one", epoch=2)),
    "a topic": (META, TopicPut(topic=TOPIC)),
    "a topic as nobody configured it": (
        META,
        TopicPut(
            topic=Topic(name="t", id="i", route=TWO_PARTITIONS, settings=TopicSettings(), created_ms=1, generation=0)
        ),
    ),
    "a topic with Kafka's partitioner": (
        META,
        TopicPut(
            topic=Topic(
                name="t",
                id="i",
                route=TWO_PARTITIONS,
                settings=TopicSettings(partitioner="kafka"),
                created_ms=1,
                generation=0,
            )
        ),
    ),
    "a topic with a limit and a commit window": (
        META,
        TopicPut(topic=replace(TOPIC, settings=TopicSettings(retention_bytes=5_000, commit_window_ms=300))),
    ),
    "a topic with settings of Kafka's clients": (
        META,
        TopicPut(topic=replace(TOPIC, kafka={"cleanup.policy": "compact", "segment.bytes": "1048576"})),
    ),
    "a topic's end": (META, TopicDeleted(name="orders", id="id-1", epoch=6)),
    "a group": (META, GroupPut(group=Group(name="billing", epoch=1, settings=GroupSettings(), created_ms=5))),
    "an exclusive group": (META, GroupPut(group=Group(name="billing", epoch=1, settings=EXCLUSIVE, created_ms=5))),
    "a group with one wait": (META, GroupPut(group=Group(name="billing", epoch=1, settings=FIXED, created_ms=5))),
    "a paused group": (
        META,
        GroupPut(
            group=Group(
                name="billing", epoch=1, settings=FIXED, created_ms=5, paused=Pause("the bank is down", 7, "ada")
            )
        ),
    ),
    "a group's end": (META, GroupDeleted(name="billing", epoch=4)),
    "a client that is forgotten": (META, ClientForgotten(group="billing", client="one", epoch=4)),
    "a reset": (META, OffsetsReset(group="billing", topic="orders", epoch=5, offsets=((LANE, 120), (RETRIES, 0)))),
    "a reset of nothing": (META, OffsetsReset(group="billing", topic="orders", epoch=5, offsets=())),
    "a beginning": (META, GroupBegan(group="billing", topics=(("id-1", 2), ("id-2", 1)))),
    "a static topic": (META, TopicPut(topic=replace(TOPIC, route=REMAPPED, static=STATIC))),
    "a global topic": (META, TopicPut(topic=replace(TOPIC, route=REMAPPED, static=replace(STATIC, world=WORLD)))),
    "a mapping": (META, MappingPut(topic_id="id-1", holder="B", mapping=MAPPING)),
    "a mapping that is gone": (META, MappingRemoved(topic_id="id-1", holder="B")),
    "dropped segments": (META, SegmentsDropped(topic_id="id-1", partitions=("orders@A",), indexes=(0,))),
    "a remapping": (
        META,
        KeysMoved(topic_id="id-1", moves=moves_between(TWO_QUEUES, REMAPPED, remaps=True, at_once=True)),
    ),
    "moves": (META, KeysMoved(topic_id="id-1", moves=moves_between(TWO_PARTITIONS, FOUR_PARTITIONS))),
    "a seal": (META, MoveSealed(topic_id="id-1", epoch=2, source="orders@A", end_offset=120, at_ms=9)),
    "a client": (META, ClientPut(group="billing", client=CLIENT)),
    "a client's end": (META, ClientGone(group="billing", id="c1", joined=4)),
    "an allocation": (
        META,
        Allocated(
            group="billing", topic="orders", topic_id="id-1", epoch=8, owners={"c1": ("orders@A", "orders@B"), "c2": ()}
        ),
    ),
    "a principal": (META, PrincipalPut(principal=Principal(name="ada@x.org", note="größe", created_ms=5))),
    "a disabled principal": (
        META,
        PrincipalPut(principal=Principal(name="ada@x.org", note="größe", created_ms=5, disabled_ms=9)),
    ),
    "a disabling": (META, PrincipalDisabled(name="ada@x.org", at_ms=9)),
    "an enabling": (META, PrincipalEnabled(name="ada@x.org")),
    "a principal's end": (META, PrincipalRemoved(name="ada@x.org")),
    "a key": (META, KeyPut(made=Key(id=ID, principal="ada@x.org", digest="ab" * 32, created_ms=5, until_ms=9))),
    "a key for SCRAM": (
        META,
        KeyPut(
            made=Key(
                id=ID,
                principal="ada@x.org",
                digest="ab" * 32,
                created_ms=5,
                until_ms=9,
                scram={"SCRAM-SHA-512": Scram(iterations=4_096, stored_key="c3RvcmVk", server_key="c2VydmVy")},
            )
        ),
    ),
    "a revocation": (META, KeyRevoked(id=ID, principal="ada@x.org")),
    "an access rule": (META, AclPut(rule=RULE)),
    "an access rule's end": (META, AclRemoved(id=RULE.id, principal="ada@x.org")),
    "a quota": (META, QuotaPut(quota=Quota(principal="ada@x.org", requests_per_s=5, bytes_out_per_s=6))),
    "a password": (META, PasswordPut(password=PASSWORD)),
    "a password's end": (META, PasswordRemoved(principal="ada@x.org", mechanism="SCRAM-SHA-512")),
    "a quota of clients": (META, ClientQuotaPut(quota=CLIENTS)),
    "a snapshot with passwords and quotas of clients": (
        SNAPSHOT,
        MetaSnapshot(
            meta=Meta(
                auth=AuthState(
                    passwords={"ada@x.org": {"SCRAM-SHA-512": PASSWORD}}, client_quotas={CLIENTS.entity: CLIENTS}
                )
            ),
            previous=0,
            told={},
        ),
    ),
    "a schema": (META, SchemaRegistered(subject="orders-value", version=1, id=7, schema=AVRO)),
    "a schema that has an id already": (META, SchemaRegistered(subject="orders-value", version=2, id=7)),
    "a deletion of schemas": (META, SchemaDeleted(subject="orders-value", versions=(1, 2), permanent=False)),
    "rules of a subject": (
        META,
        SubjectRulesPut(subject="orders-value", rules=SubjectRules(compatibility="FULL", mode="READONLY")),
    ),
    "a snapshot with schemas": (SNAPSHOT, MetaSnapshot(meta=Meta(schemas=REGISTRY), previous=0, told={})),
    "an empty snapshot": (SNAPSHOT, MetaSnapshot(meta=Meta(), previous=0, told={})),
    "a snapshot": (
        SNAPSHOT,
        MetaSnapshot(meta=decided(Meta(), PRELUDE), previous=3, told={"groups": 5, "moved": 9}),
    ),
    "a checkpoint": (REVIVE, Checkpoint(pop=POP, span=Span(7, 32), bit_map=2**32 - 1)),
    "a checkpoint with everything": (
        REVIVE,
        Checkpoint(
            pop=POP,
            span=Span(7, 3, (0, 1, 5), (1, 4, 2)),
            bit_map=0b010,
            replaces=Replaced(KEY, 0b100),
            dead_reason="unlesbar: ß",
        ),
    ),
    "a checkpoint that was given back": (
        REVIVE,
        Checkpoint(pop=replace(POP, given_back=True), span=Span(7, 1), replaces=Replaced(KEY, 0b100)),
    ),
    "an ack": (REVIVE, Ack(KEY, 0b010, 61_000)),
    "a batch of acks": (REVIVE, Ack(KEY, 2**32 - 1, 61_000)),
    "what was revived": (REVIVE, Done(KEY, 0b110, 61_000)),
    "a commit": (OFFSETS, OffsetRecord(lane=LANE, topic="orders", committed=Committed(1, 120))),
    "a commit in order": (
        OFFSETS,
        OffsetRecord(lane=RETRIES, topic="orders", committed=Committed(2, 120, ((124, 126), (130, 131)), LEASES)),
    ),
    "a commit with gaps": (
        OFFSETS,
        OffsetRecord(lane=LANE, topic="orders", committed=Committed(2, 120, ((124, 126),))),
    ),
    "a commit with leases": (
        OFFSETS,
        OffsetRecord(lane=LANE, topic="orders", committed=Committed(2, 120, (), LEASES)),
    ),
    "a loss": (
        LOSSES,
        LostRecord(lane=RETRIES, topic="orders", ranges=((1, 4), (6, 7)), reason=LostReason.RETENTION, time_ms=5_000),
    ),
    "a cancellation": (MARKS, Cancelled("rmq_sys_delay@A", 4, "m-1")),
    "an end of waiting": (MARKS, Ended("rmq_sys_delay@A", ((0, 3), (5, 6)))),
    "an act begun": (
        AUDITS,
        ActBegun(
            id="5f",
            time_ms=7,
            principal="ada@x.org",
            address="10.0.0.1:99",
            process="p1",
            call="PUT /v1/topics/{topic}",
            resource="topic",
            name="orders",
            asked='{"partitions":2,"topic":"orders"}',
        ),
    ),
    "an act ended": (
        AUDITS,
        ActEnded(
            id="5f",
            time_ms=9,
            outcome="done",
            status=201,
            events=("topic_put",),
            code="",
            detail="",
            before='{"topic/orders":null}',
            after='{"topic/orders":{"id":"id-1"}}',
        ),
    ),
    "refusals": (
        AUDITS,
        RefusalCount(
            id="60",
            minute_ms=60_000,
            process="p1",
            principal="(anonymous)",
            call="(none)",
            status=401,
            code="unauthenticated",
            count=3,
            address="10.0.0.1:98",
        ),
    ),
    "a position": (
        STREAMS,
        StreamOffset(warehouse="w", topics={"orders": TopicOffset("id-1", {"orders@A": 120, "orders@B": 0})}),
    ),
    "a position in nothing": (STREAMS, StreamOffset(warehouse="", topics={})),
    "a route": (ROUTES, FOUR_PARTITIONS),
}

STORED: Mapping[str, tuple[str, Any]] = {
    line["name"]: (line["tag"], line["body"])
    for line in map(json.loads, Path(__file__).with_name("stored_forms.jsonl").read_text(encoding="utf-8").splitlines())
}

#: Fields that are written only where there is something in them, or have a default.
OPTIONAL = {
    *("machine", "kafka", "done", "delivered", "d", "rp", "dr", "gb", "filter", "paused"),
    # without static or global topics
    *("world", "held_by", "local_end", "at_once"),
    *("features", "on"),
    *("schema", "schema_type", "references", "schemas", "subjects", "rules", "last_id", "compatibility", "mode"),
    *("note", "disabled_ms", "until_ms", "scram", "auth", "auth.principals", "auth.keys", "auth.rules", "auth.quotas"),
    *("requests_per_s", "bytes_in_per_s", "bytes_out_per_s", "user", "client_id", "passwords", "client_quotas"),
    *("retired", "static", "at_ms", "hosted", "copies", "version", "access", "access.brokers", "access.partitions"),
    *(f"{queue}.{name}" for queue in (0, 1) for name in ("start_offset", "end_offset", "end_ms")),
    *(f"settings.{name}" for name in ("order_strategy", "retention_ms", "message_type", "flush", "partitioner")),
    *(f"settings.{name}" for name in ("retention_bytes", "commit_window_ms")),
    *(f"settings.{name}" for name in ("consume_strategy", "allocation_strategy", "order", "consume_from")),
    *(f"settings.{name}" for name in ("max_attempts", "retry_policy", "invisible_ms")),
    *(f"exponential.{name}" for name in ("initial_ms", "multiplier", "max_ms", "jitter")),
}
#: Fields that may be null.
NULLABLE = {
    *("flush", "d", "rp", "dr", "static", "world", "filter", "until_ms", "paused"),
    *("requests_per_s", "bytes_in_per_s", "bytes_out_per_s", "user", "client_id"),
}
#: The keys of objects whose keys are names, where another key is another entry.
NAMES = {
    "orders",
    "refunds",
    "c1",
    "c2",
    *AB,
    "/meta",
    "id-1",
    "id-2",
    "orders@A",
    "orders@B",
    "billing",
    "0",
    "1",
    "segment.bytes",
}
NAMES_ANYWHERE = {"told", "scram", "passwords", "ada@x.org"}

Path_ = tuple[str | int, ...]


def nodes(value: object, path: Path_ = ()) -> Iterator[tuple[Path_, object]]:
    """Every value in a JSON document, with the way to it."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield from nodes(item, (*path, name))


def changed(document: object, path: Path_, change: Callable[[Any, Any], object]) -> bytes:
    """The text of a document in which `change(container, key)` was called for the value at `path`."""
    root = {"": deepcopy(document)}
    inner: Any = root
    for name in ("", *path)[:-1]:
        inner = inner[name]
    change(inner, ("", *path)[-1])
    return json.dumps(root[""]).encode()


def code_of(family: Family, path: Path_) -> str:
    """Damage inside of a route is damage of the route, wherever it lies."""
    return "route_corrupt" if "route" in path else family.code


def is_names(path: Path_, value: object) -> bool:
    return isinstance(value, dict) and bool(NAMES & value.keys() or NAMES_ANYWHERE & set(path[-1:]))


def field(path: Path_) -> set[str]:
    """How `OPTIONAL` and `NULLABLE` may name the value at `path`."""
    return {str(path[-1]), ".".join(map(str, path[-2:]))} if path else set()


def others(value: object) -> list[object]:
    """Values of another type than that of `value`."""
    if isinstance(value, bool):
        return ["yes", 1, None]
    if isinstance(value, int):
        return ["7", 7.5, 7.0, True, None, []]
    if isinstance(value, float):
        return ["7", True, None]
    if isinstance(value, str):
        return [7, True, None, {}]
    if isinstance(value, list):
        return ["text", {"a": 1}, 7, None]
    if isinstance(value, dict):
        return ["text", [1.5], 7, None]
    return [{"a": 1}, True]


@pytest.mark.parametrize("name", EXAMPLES)
def test_meta_04_what_was_written_is_read_and_written_again(name: str) -> None:
    family, value = EXAMPLES[name]
    tag, document = STORED[name]
    assert family.read(tag, json.dumps(document).encode()) == value
    assert family.written(value) == (tag, document)


def test_every_example_is_stored() -> None:
    assert STORED.keys() == EXAMPLES.keys()


def test_cons_09_a_subscription_of_a_release_without_filters_has_none() -> None:
    family, value = EXAMPLES["a client"]
    tag, document = STORED["a client"]
    text = changed(document, ("client", "topics", "orders"), lambda holder, key: holder[key].pop("filter"))
    topics = {**CLIENT.topics, "orders": replace(CLIENT.topics["orders"], filter=None)}
    assert family.read(tag, text) == replace(value, client=replace(CLIENT, topics=topics))


@pytest.mark.parametrize("name", ["a key", "a snapshot"])
def test_meta_04_a_name_of_a_field_that_is_no_text_is_damage(name: str) -> None:
    family, _ = EXAMPLES[name]
    tag, document = STORED[name]
    text = json.dumps({**document, "damaged?": 1}).encode().replace(b"damaged?", b"damaged\xe0")
    with pytest.raises(Corrupt) as found:
        family.read(tag, text)
    assert found.value.code == family.code


@pytest.mark.parametrize("name", EXAMPLES)
def test_meta_06_a_field_of_a_newer_release_is_never_dropped(name: str) -> None:
    family, value = EXAMPLES[name]
    tag, document = STORED[name]
    for path, found in nodes(document):
        if isinstance(found, dict) and not is_names(path, found) and "retry_policy" not in path and found:
            text = changed(document, path, lambda holder, key: holder[key].update(of_a_newer_release={"a": [1.5]}))
            if family in (META, SNAPSHOT):
                with pytest.raises(Unavailable, match="of_a_newer_release") as refused:
                    family.read(tag, text)
                assert refused.value.code == "metadata_newer", path
            else:
                assert family.read(tag, text) == value, path


@pytest.mark.parametrize("name", EXAMPLES)
def test_meta_04_a_missing_field_is_damage(name: str) -> None:
    family, _ = EXAMPLES[name]
    tag, document = STORED[name]
    for path, _ in nodes(document):
        holder = path_value(document, path[:-1])
        if not path or isinstance(holder, list) or is_names(path[:-1], holder) or OPTIONAL & field(path):
            continue
        text = changed(document, path, lambda holder, key: holder.pop(key))
        with pytest.raises(Corrupt) as found:
            family.read(tag, text)
        assert found.value.code == code_of(family, path[:-1]), path


def path_value(document: Any, path: Path_) -> object:
    for name in path:
        document = document[name]
    return document


@pytest.mark.parametrize("name", EXAMPLES)
def test_meta_04_a_value_of_another_type_is_damage(name: str) -> None:
    family, _ = EXAMPLES[name]
    tag, document = STORED[name]
    for path, value in nodes(document):
        for other in others(value):
            if is_fine(path, value, other):
                continue
            text = changed(document, path, lambda holder, key, other=other: holder.__setitem__(key, other))
            try:
                read = family.read(tag, text)
            except Corrupt as error:
                assert error.code == code_of(family, path), (path, other)
            else:
                pytest.fail(f"{other!r} at {path} is read as {read}")


def is_fine(path: Path_, value: object, other: object) -> bool:
    if not path:
        return False
    if other is None and NULLABLE & field(path):
        return True
    # One attempt for all messages or a list; a role that nobody has; a move that is not sealed; an order of groups.
    return (
        (path[-1] == "a" and isinstance(other, int | list))
        or ("roles" in path and path[-1] == 0 and other is None)
        or ("moved" in path and path[-1] == 4 and other is None)
        or (path[-2:] == ("settings", "order") and other is True)
    )


#: What earlier releases wrote, or might have: an example, where it differs, and what the value is then.
EARLIER: Mapping[str, tuple[str, Path_, object, object]] = {
    "a host without its machine": (
        "a host",
        ("host",),
        {name: value for name, value in STORED["a host"][1]["host"].items() if name != "machine"},
        HostRegistered(host=replace(HOST, machine="")),
    ),
    "a host without an address for Kafka's clients": (
        "a host",
        ("host",),
        {name: value for name, value in STORED["a host"][1]["host"].items() if name != "kafka"},
        HostRegistered(host=replace(HOST, kafka="")),
    ),
    "a topic without settings": (
        "a topic",
        ("topic", "settings"),
        {},
        TopicPut(topic=replace(TOPIC, settings=TopicSettings())),
    ),
    "a topic with some settings": (
        "a topic",
        ("topic", "settings"),
        {"retention_ms": 1},
        TopicPut(topic=replace(TOPIC, settings=TopicSettings(retention_ms=1))),
    ),
    "a topic of before static topics": (
        "a topic",
        ("topic",),
        {name: value for name, value in STORED["a topic"][1]["topic"].items() if name != "static"},
        TopicPut(topic=TOPIC),
    ),
    "a topic of before partitioners": (
        "a topic",
        ("topic", "settings"),
        {name: value for name, value in STORED["a topic"][1]["topic"]["settings"].items() if name != "partitioner"},
        TopicPut(topic=TOPIC),
    ),
    "a group without settings": ("an exclusive group", ("group", "settings"), {}, EXAMPLES["a group"][1]),
    "a policy without numbers": (
        "a group",
        ("group", "settings"),
        {"retry_policy": {"exponential": {}}},
        GroupPut(
            group=Group(name="billing", epoch=1, settings=GroupSettings(retry_policy=Exponential()), created_ms=5)
        ),
    ),
    "a checkpoint with nulls": (
        "a checkpoint",
        (),
        {**STORED["a checkpoint"][1], "d": None, "rp": None, "dr": None},
        EXAMPLES["a checkpoint"][1],
    ),
    "a commit with empty lists": (
        "a commit",
        (),
        {**STORED["a commit"][1], "done": [], "delivered": []},
        EXAMPLES["a commit"][1],
    ),
    "a commit with one list": (
        "a commit",
        (),
        {**STORED["a commit"][1], "done": [[124, 126]]},
        OffsetRecord(lane=LANE, topic="orders", committed=Committed(1, 120, ((124, 126),))),
    ),
}


@pytest.mark.parametrize("name", EARLIER)
def test_meta_04_what_an_earlier_release_wrote_is_read(name: str) -> None:
    example, path, there, value = EARLIER[name]
    tag, document = STORED[example]
    text = changed(document, path, lambda holder, key: holder.__setitem__(key, there))
    assert EXAMPLES[example][0].read(tag, text) == value


#: An example, a value in it, and what cannot stand there.
DAMAGE: tuple[tuple[str, Path_, object], ...] = (
    ("a topic", ("topic", "route", "owners", 0), [0, 256]),
    ("a topic", ("topic", "route", "owners", 0), [0, 256, 0, 0]),
    ("a topic", ("topic", "route", "owners"), []),
    ("a topic", ("topic", "settings", "order_strategy"), "loose"),
    ("a topic", ("topic", "settings", "flush"), "never"),
    ("a topic", ("topic", "settings", "partitioner"), "crc32"),
    ("a group", ("group", "settings", "consume_strategy"), "alone"),
    ("a group", ("group", "settings", "allocation_strategy"), "random"),
    ("a group", ("group", "settings", "order"), "keys"),
    ("a group", ("group", "settings", "consume_from"), "yesterday"),
    ("a group", ("group", "settings", "retry_policy"), []),
    ("a group", ("group", "settings", "retry_policy"), [-1]),
    ("a group", ("group", "settings", "retry_policy"), {}),
    ("a group", ("group", "settings", "retry_policy"), {"fixed_ms": 1, "more": 2}),
    ("a group", ("group", "settings", "retry_policy"), {"exponential": {"more": 2}}),
    ("a group", ("group", "settings", "retry_policy"), {"exponential": {"initial_ms": 1.5}}),
    ("a reset", ("offsets", 0), ["id-1", False, "orders@A"]),
    ("a reset", ("offsets", 0), ["id-1", False, "orders@A", 1, 2]),
    ("a beginning", ("topics", 0), ["id-1"]),
    ("a beginning", ("topics", 0), ["id-1", 2, 3]),
    ("moves", ("moves", 0), [2, "orders@A", "orders#1@A"]),
    ("moves", ("moves", 0), [2, "orders@A", "orders#1@A", [[0, 1]], 120]),
    ("moves", ("moves", 0, 3, 0), [0]),
    ("a snapshot", ("moved", "id-2", 0), [4, "orders@A", "orders#1@A", [[0, 1]]]),
    ("a snapshot", ("moved", "id-2", 0), [4, "orders@A", "orders#1@A", [[0, 1]], None, 5]),
    ("a mapping", ("mapping", "hosted", "0", 0), "orders@A"),
    ("a static topic", ("topic", "static", "owners", 0), [0, 512]),
    ("a snapshot", ("groups", "resets", 0), ["id-1", "billing", False, "orders@A", 1]),
    ("a snapshot", ("groups", "began", 0), ["billing", "id-1"]),
    ("a snapshot", ("brokers", "roles", "A"), ["one"]),
    ("a snapshot", ("brokers", "roles", "A"), ["one", 1, 2]),
    ("a snapshot", ("topics", "topics", 0, "route", "owners"), []),
    ("a checkpoint", ("n",), 33),
    ("a checkpoint", ("n",), 0),
    ("a checkpoint", ("n",), 31),
    ("a checkpoint", ("bm",), -1),
    ("a checkpoint", ("so",), -1),
    ("a checkpoint", ("it",), -1),
    ("a checkpoint", ("rq",), -1),
    ("a checkpoint with everything", ("d",), [0, 1]),
    ("a checkpoint with everything", ("d",), []),
    ("a checkpoint with everything", ("d",), [1, 2, 5]),
    ("a checkpoint with everything", ("d",), [0, 5, 1]),
    ("a checkpoint with everything", ("d",), [0, 5, 5]),
    ("a checkpoint with everything", ("a",), [1, 4]),
    ("a checkpoint with everything", ("rp", "b"), 0),
    ("a checkpoint with everything", ("rp", "b"), 2**32),
    ("a checkpoint with everything", ("rp", "so"), -1),
    ("an ack", ("b",), 0),
    ("a batch of acks", ("b",), 2**32),
    ("what was revived", ("b",), -1),
    ("a commit in order", ("done", 0), [1]),
    ("a commit in order", ("done", 0), [1, 2, 3]),
    ("a commit in order", ("delivered", 0), [1, 1, 5]),
    ("a commit in order", ("delivered", 0), [1, 1, 5, 6, 7]),
    ("a loss", ("ranges", 0), [1]),
    ("a loss", ("reason",), "carelessness"),
    ("an end of waiting", ("ranges", 0), [1, 2, 3]),
    ("a position", ("topics", "orders", "partitions", "orders@A"), -1),
    ("a position", ("version",), 0),
    ("a route", ("partitions",), ["orders@A", "orders@A", "orders#1@A", "orders#2@B"]),
)


@pytest.mark.parametrize(("example", "path", "there"), DAMAGE, ids=str)
def test_meta_04_what_cannot_be_is_damage(example: str, path: Path_, there: object) -> None:
    family = EXAMPLES[example][0]
    tag, document = STORED[example]
    with pytest.raises(Corrupt) as found:
        family.read(tag, changed(document, path, lambda holder, key: holder.__setitem__(key, there)))
    assert found.value.code == code_of(family, path)


@pytest.mark.parametrize(
    ("family", "tag", "code"),
    [
        (META, "topic_frozen", "meta_event_unknown"),
        (META, MetaSnapshot.kind, "meta_event_unknown"),
        (REVIVE, "ck9", "revive_record_unknown"),
        (MARKS, "postponed", "delay_mark_corrupt"),
        (AUDITS, "approved", "audit_record_corrupt"),
    ],
)
def test_meta_04_a_kind_of_a_newer_release_is_not_skipped(family: Family, tag: str, code: str) -> None:
    with pytest.raises(Corrupt) as found:
        family.read(tag, b"{}")
    assert found.value.code == code
