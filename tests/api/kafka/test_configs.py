"""Settings of topics and nodes as Kafka's clients give and see them (SPEC KAFKA-5, KAFKA-15)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, NewTopic

from deltamq.api.kafka.messages.cluster_messages import (
    AlteringConfig,
    CreateTopic,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    IncrementallyAltering,
    NamedValue,
)
from deltamq.api.kafka.messages.cluster_messages import ConfigResource as AskedResource
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.node_settings import shown_of_node
from deltamq.api.kafka.topic_settings import TOPIC_SETTINGS, Change, Operation, changes_of
from deltamq.mq.limits import RETENTION_MS_DEFAULT, RETENTION_MS_MAX
from deltamq.tables.config_sections import ServiceSettings
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient

TIMEOUT_S = 30
SET, RESET = AlterConfigOpType.SET, AlterConfigOpType.DELETE
ADD, TAKE = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT

#: All that Kafka 4.3 shows of a topic.
KAFKAS = frozenset(
    (
        *("cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type"),
        *("compression.zstd.level", "delete.retention.ms", "file.delete.delay.ms", "flush.messages", "flush.ms"),
        *("follower.replication.throttled.replicas", "index.interval.bytes", "leader.replication.throttled.replicas"),
        *("local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms", "max.message.bytes"),
        *("message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type"),
        *("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate"),
        *("remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable", "retention.bytes"),
        *("retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms"),
        "unclean.leader.election.enable",
    )
)
SCHEMA = frozenset(
    f"deltamq.schema.{name}" for name in ("format", "subject", "schema", "message", "wire", "on_invalid", "unwrap")
)
OURS = frozenset(("deltamq.partitioner", "deltamq.commit.window.ms")) | SCHEMA
#: Settings that a topic can have, with the words in which Kafka 4.3 shows them.
TAKEN = (
    *(("cleanup.policy", given) for given in ("delete", "compact", "compact,delete", "")),
    ("cleanup.policy", " compact , delete ", "compact,delete"),
    ("cleanup.policy", "compact,compact", "compact"),
    *(("compression.type", given) for given in ("producer", "gzip", "uncompressed", "zstd", "lz4", "snappy")),
    *(("compression.gzip.level", given) for given in ("-1", "1", "9")),
    *(("compression.lz4.level", given) for given in ("1", "17")),
    *(("compression.zstd.level", given) for given in ("-131072", "22")),
    *(("delete.retention.ms", given) for given in ("0", "1000")),
    ("file.delete.delay.ms", "1000"),
    *(("flush.messages", given) for given in ("1", "9223372036854775807")),
    ("flush.ms", "0"),
    ("index.interval.bytes", "4096"),
    *(("leader.replication.throttled.replicas", given) for given in ("*", "0:1,1:2", "")),
    ("follower.replication.throttled.replicas", "3:4"),
    ("local.retention.ms", "-2"),
    ("local.retention.bytes", "-1"),
    ("max.compaction.lag.ms", "1"),
    ("min.compaction.lag.ms", "9223372036854775807"),
    *(("max.message.bytes", given) for given in ("0", "1048588", "10000000", "2147483647")),
    ("message.timestamp.type", "CreateTime"),
    ("message.timestamp.after.max.ms", "3600000"),
    ("message.timestamp.before.max.ms", "0"),
    *(("min.cleanable.dirty.ratio", given) for given in ("0.5", "0.0", "1.0")),
    ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
    *(("min.insync.replicas", given) for given in ("1", "2")),
    ("preallocate", "TRUE", "true"),
    ("remote.storage.enable", "false"),
    ("remote.log.copy.disable", "true"),
    ("remote.log.delete.on.disable", "true"),
    *(("retention.bytes", given) for given in ("-1", "-7", "1000000")),
    *(("retention.ms", given) for given in ("-1", "604800000", "9223372036854775807")),
    ("retention.ms", " 70000 ", "70000"),
    *(("segment.bytes", given) for given in ("1048576", "52428800")),
    *(("segment.ms", given) for given in ("1", "60000")),
    ("segment.ms", "+5", "5"),
    ("segment.index.bytes", "4"),
    ("segment.jitter.ms", "0"),
    ("unclean.leader.election.enable", "true"),
    ("deltamq.partitioner", "kafka"),
    *(("deltamq.commit.window.ms", given) for given in ("0", "60000")),
)
#: Values that Kafka 4.3 refuses.
REFUSED_BY_KAFKA = (
    *(("cleanup.policy", given) for given in ("none", "Compact", "compact;delete")),
    *(("compression.type", given) for given in ("GZIP", "brotli", "none")),
    *(("compression.gzip.level", given) for given in ("0", "10")),
    *(("compression.lz4.level", given) for given in ("0", "18")),
    *(("compression.zstd.level", given) for given in ("-131073", "23")),
    *(("flush.messages", given) for given in ("0", "9223372036854775808")),
    *(("leader.replication.throttled.replicas", given) for given in ("x", "1:2:3", "*,1:2")),
    ("local.retention.ms", "-3"),
    ("max.compaction.lag.ms", "0"),
    *(("max.message.bytes", given) for given in ("-1", "2147483648")),
    *(("message.timestamp.type", given) for given in ("createtime", "")),
    *(("min.cleanable.dirty.ratio", given) for given in ("-0.1", "1.1", "nan", "half", "1_0")),
    *(("min.insync.replicas", given) for given in ("0", "1.0", "")),
    *(("preallocate", given) for given in ("yes", "1")),
    *(("retention.bytes", given) for given in ("much", "1MB", "9223372036854775808")),
    *(("retention.ms", given) for given in ("-2", "soon", "1_000", "1e5", "9" * 5_000)),
    *(("segment.bytes", given) for given in ("14", "1MB")),
    *(("segment.ms", given) for given in ("0", "5L", "0x5")),
    ("message.format.version", "2.8"),
    ("message.downconversion.enable", "true"),
    ("confluent.value.schema.validation", "true"),
    ("no.such", "1"),
)
#: Values that promise what is not done here.
REFUSED_HERE = (
    ("message.timestamp.type", "LogAppendTime"),
    ("remote.storage.enable", "true"),
    ("retention.bytes", "0"),
    *(("retention.ms", given) for given in ("0", "999")),
    ("deltamq.partitioner", "murmur"),
    *(("deltamq.commit.window.ms", given) for given in ("-1", "60001", "0.5")),
)


# Values: no service is needed.


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: f"{case[0]}={case[1]}")
def test_kafka_15_what_kafka_takes_is_taken(case: tuple[str, ...]) -> None:
    name, given, shown = case if len(case) == 3 else (*case, case[1])
    found = changes_of([Change(name, Operation.SET, given)], {})
    assert found.problems == {}
    assert (found.kafka.get(name) or found.partitioner or "") == shown


@pytest.mark.parametrize(("name", "given"), (*REFUSED_BY_KAFKA, *REFUSED_HERE))
def test_kafka_15_a_value_that_cannot_be_is_refused_by_its_name(name: str, given: str) -> None:
    asked = [Change("segment.jitter.ms", Operation.SET, "7"), Change(name, Operation.SET, given)]
    found = changes_of(asked, {})
    assert list(found.problems) == [name] and found.problems[name].startswith(name)
    assert found.kafka == {"segment.jitter.ms": "7"} and found.partitioner is None


def test_kafka_15_all_settings_of_kafkas_topics_are_known_with_defaults_that_can_be_given() -> None:
    assert TOPIC_SETTINGS.keys() == KAFKAS | OURS
    given = [Change(name, Operation.SET, one.default) for name, one in TOPIC_SETTINGS.items()]
    found = changes_of(given, {})
    assert found.problems == {}
    ours = {"deltamq.partitioner": found.partitioner, **{f"deltamq.schema.{k}": v for k, v in found.schema.items()}}
    assert {**found.kafka, **ours} == {one.name: one.value for one in given}


@pytest.mark.parametrize(
    ("present", "operation", "items", "after"),
    [
        ("compact", Operation.ADD, "delete", "compact,delete"),
        ("compact", Operation.ADD, "compact", "compact"),
        (None, Operation.ADD, "compact", "delete,compact"),
        ("compact,delete", Operation.TAKE, "compact", "delete"),
        ("compact", Operation.TAKE, "compact,delete", ""),
        ("", Operation.ADD, "compact", "compact"),
    ],
)
def test_kafka_15_lists_get_and_lose_items(present: str | None, operation: int, items: str, after: str) -> None:
    kept = {} if present is None else {"cleanup.policy": present}
    assert changes_of([Change("cleanup.policy", operation, items)], kept).kafka == {"cleanup.policy": after}


@pytest.mark.parametrize(
    "asked",
    [
        [Change("retention.ms", Operation.ADD, "1000")],
        [Change("cleanup.policy", Operation.ADD, "sweep")],
        [Change("cleanup.policy", 7, "compact")],
        [Change("retention.ms", Operation.SET, None)],
        [Change("retention.ms", Operation.SET, "5000"), Change("retention.ms", Operation.SET, "6000")],
        [Change("max.compaction.lag.ms", Operation.SET, "50")],
    ],
)
def test_kafka_15_a_change_that_cannot_be_made_is_not_made(asked: list[Change]) -> None:
    found = changes_of(asked, {"min.compaction.lag.ms": "100"})
    assert found.kafka == {} and list(found.problems) == [asked[0].name]


# Through the door.


@pytest.fixture
def admin(kafka: KafkaApi) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.address})


def _done(futures) -> object:
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def _refused(futures) -> tuple[int, str]:
    with pytest.raises(KafkaException) as error:
        _done(futures)
    return error.value.args[0].code(), error.value.args[0].str()


def _make(admin: AdminClient, topic: str, **config: str) -> None:
    _done(
        admin.create_topics([NewTopic(topic, 1, 1, config={name.replace("_", "."): v for name, v in config.items()})])
    )


def _alter(admin: AdminClient, topic: str, *changes: tuple[str, str | None, AlterConfigOpType], **options: bool):
    entries = [ConfigEntry(name, value, incremental_operation=how) for name, value, how in changes]
    return admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=entries)], **options)


def _replace(admin: AdminClient, topic: str, config: Mapping[str, str]):
    with warnings.catch_warnings():  # older clients have no other call
        warnings.simplefilter("ignore", DeprecationWarning)
        return admin.alter_configs([ConfigResource("topic", topic, set_config=dict(config))])


def _entries(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    return _done(admin.describe_configs([ConfigResource("topic", topic)]))


def _set(admin: AdminClient, topic: str) -> dict[str, str]:
    """What is set of a topic, without the defaults."""
    found = _entries(admin, topic).items()
    return {name: one.value for name, one in found if one.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}


def _retention_ms(kafka: KafkaApi, topic: str) -> int:
    return kafka.api.call("GET", f"/v1/topics/{topic}").json["retention_ms"]


STREAMS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "CreateTime",
    "segment.bytes": "52428800",
    "retention.ms": "-1",
    "min.insync.replicas": "2",
    "max.message.bytes": "10000000",
}


def test_kafka_15_what_is_taken_is_shown_and_outlives_a_restart_however_it_came(tmp_path, topic) -> None:
    names = [f"{topic}.{how}" for how in ("created", "altered", "replaced")]
    with kafka_running(tmp_path) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        _done(admin.create_topics([NewTopic(names[0], 1, 1, config=STREAMS)]))
        _make(admin, names[1], retention_ms="60000")
        _done(_alter(admin, names[1], *((name, value, SET) for name, value in STREAMS.items())))
        _make(admin, names[2], segment_ms="1000")
        _done(_replace(admin, names[2], STREAMS))
        assert [_set(admin, one) for one in names] == [STREAMS] * 3
    with kafka_running(tmp_path) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        assert [_set(admin, one) for one in names] == [STREAMS] * 3
        _done(_alter(admin, names[0], ("retention.ms", None, RESET), ("segment.bytes", None, RESET)))
        left = {name: value for name, value in STREAMS.items() if name not in ("retention.ms", "segment.bytes")}
        assert _set(admin, names[0]) == left
        _done(_replace(admin, names[1], {}))
        assert _set(admin, names[1]) == {} and _retention_ms(kafka, names[1]) == RETENTION_MS_DEFAULT


def test_kafka_15_nothing_of_a_compacted_topic_is_removed_by_time(kafka, admin, topic) -> None:
    _make(admin, topic, cleanup_policy="compact")
    assert _retention_ms(kafka, topic) == RETENTION_MS_MAX
    assert _entries(admin, topic)["retention.ms"].value == str(RETENTION_MS_DEFAULT), "as Kafka shows it"
    _done(_alter(admin, topic, ("retention.ms", "60000", SET)))
    assert _retention_ms(kafka, topic) == RETENTION_MS_MAX
    _done(_alter(admin, topic, ("cleanup.policy", "delete", ADD)))
    assert _retention_ms(kafka, topic) == 60_000
    _done(_alter(admin, topic, ("cleanup.policy", "delete", TAKE)))
    assert _retention_ms(kafka, topic) == RETENTION_MS_MAX
    assert kafka.api.call("PUT", f"/v1/topics/{topic}", {"retention_ms": 70_000}).json["retention_ms"] == 70_000
    assert _set(admin, topic) == {"cleanup.policy": "compact,delete", "retention.ms": "70000"}


def test_kafka_05_settings_are_changed_and_put_back_to_their_defaults(kafka, admin, topic) -> None:
    _make(admin, topic)
    assert _set(admin, topic) == {}
    _done(_alter(admin, topic, ("retention.ms", "60000", SET)))
    assert _set(admin, topic) == {"retention.ms": "60000"} and _retention_ms(kafka, topic) == 60_000
    _done(_alter(admin, topic, ("retention.ms", "70000", SET), ("segment.ms", "5", SET), validate_only=True))
    _done(_alter(admin, topic, ("cleanup.policy", "delete", SET)))
    assert _set(admin, topic) == {"retention.ms": "60000", "cleanup.policy": "delete"}
    _done(_alter(admin, topic, ("retention.ms", None, RESET), ("no.such", None, RESET)))
    assert _set(admin, topic) == {"cleanup.policy": "delete"} and _retention_ms(kafka, topic) == RETENTION_MS_DEFAULT
    _done(_replace(admin, topic, {"retention.ms": "-1"}))
    assert _set(admin, topic) == {"retention.ms": "-1"} and _retention_ms(kafka, topic) == RETENTION_MS_MAX
    kafka.api.put_topic(topic, retention_ms=5_000)
    assert _set(admin, topic) == {"retention.ms": "5000"}


def test_send_14_kafka_clients_set_a_commit_window_and_put_it_back(kafka, admin, topic) -> None:
    _make(admin, topic, deltamq_commit_window_ms="300")
    assert kafka.api.call("GET", f"/v1/topics/{topic}").json["commit_window_ms"] == 300
    kafka.api.put_topic(topic, commit_window_ms=0)
    assert _set(admin, topic) == {"deltamq.commit.window.ms": "0"}
    _done(_alter(admin, topic, ("deltamq.commit.window.ms", None, RESET)))
    assert _set(admin, topic) == {}
    _done(_alter(admin, topic, ("deltamq.commit.window.ms", "500", SET)))
    _done(_replace(admin, topic, {"retention.ms": "60000"}))
    assert _set(admin, topic) == {"retention.ms": "60000"}


def test_kafka_15_a_setting_that_cannot_be_refuses_its_key_and_not_the_resource(kafka, admin, topic) -> None:
    _make(admin, topic)
    changes = [("retention.ms", "60000", SET), ("no.such", "1", SET), ("segment.bytes", "14", SET)]
    code, text = _refused(_alter(admin, topic, *changes, validate_only=True))
    assert code == KafkaError.INVALID_CONFIG and _set(admin, topic) == {}
    code, text = _refused(_alter(admin, topic, *changes))
    assert code == KafkaError.INVALID_CONFIG
    assert "no.such" in text and "segment.bytes" in text and "retention.ms" not in text
    assert _set(admin, topic) == {"retention.ms": "60000"}
    assert _refused(_alter(admin, topic, ("no.such", "1", SET)))[0] == KafkaError.INVALID_CONFIG
    code, text = _refused(_replace(admin, topic, {"segment.ms": "5", "no.such": "1"}))
    assert (code, "no.such" in text) == (KafkaError.INVALID_CONFIG, True)
    assert _set(admin, topic) == {"retention.ms": "60000"}, "what gives all settings is taken whole or not at all"
    code, text = _refused(admin.create_topics([NewTopic(f"{topic}.x", 1, config={"segment.ms": "5", "no.such": "1"})]))
    assert (code, "no.such" in text) == (KafkaError.INVALID_CONFIG, True)
    assert kafka.api.call("GET", f"/v1/topics/{topic}.x").status == 404


def test_kafka_15_many_wrong_settings_are_refused_in_one_answer_that_fits(kafka, admin, topic) -> None:
    _make(admin, topic)
    wrong = [AlteringConfig(f"{number}{'x' * 500}", 0, "1") for number in range(500)]
    with RawClient(kafka.port) as raw:
        asked = IncrementalAlterConfigsRequest([IncrementallyAltering(2, topic, wrong)], False)
        (refused,) = raw.ask(asked).responses
    assert refused.error_code == ErrorCode.INVALID_CONFIG and refused.error_message.endswith("; and 484 more")


def test_kafka_15_every_setting_of_a_topic_is_shown_with_where_it_comes_from(kafka, admin, topic) -> None:
    _make(admin, topic, segment_bytes="1048576")
    found = _entries(admin, topic)
    assert found.keys() == KAFKAS | OURS
    assert {name for name, one in found.items() if one.is_read_only} == {"deltamq.partitioner"}
    assert not any(one.is_sensitive for one in found.values())
    segment = found["segment.bytes"]
    assert [(one.name, one.value, one.source) for one in segment.synonyms.values()] == [
        ("segment.bytes", "1048576", ConfigSource.DYNAMIC_TOPIC_CONFIG.value),
        ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT_CONFIG.value),
    ]
    assert list(found["flush.ms"].synonyms) == ["log.flush.interval.ms"]
    with RawClient(kafka.port) as raw:
        asked = DescribeConfigsRequest([AskedResource(2, topic, ["segment.ms", "no.such"])], False, True)
        (segment_ms,) = raw.ask(asked).results[0].configs
        assert (segment_ms.config_type, segment_ms.synonyms) == (5, []) and segment_ms.documentation
        asked = DescribeConfigsRequest([AskedResource(2, topic, [])], False, False)
        assert {one.name for one in raw.ask(asked).results[0].configs} == found.keys()


def test_kafka_15_an_answer_to_the_making_of_a_topic_has_its_settings(kafka, topic) -> None:
    config = [NamedValue("cleanup.policy", "compact"), NamedValue("retention.ms", "-1")]
    with RawClient(kafka.port) as raw:
        for validate_only in (True, False):
            asked = CreateTopicsRequest([CreateTopic(topic, 1, 1, [], config)], 30_000, validate_only)
            (made,) = raw.ask(asked).topics
            assert made.error_code == ErrorCode.NONE
            assert {one.name: one.value for one in made.configs if one.source == 1} == {
                "cleanup.policy": "compact",
                "retention.ms": "-1",
            }
            assert {one.name for one in made.configs} == TOPIC_SETTINGS.keys()


def test_kafka_15_a_node_shows_its_settings_and_those_by_which_topics_have_their_defaults(kafka, admin) -> None:
    (node,) = admin.list_topics(timeout=TIMEOUT_S).brokers
    found = _done(admin.describe_configs([ConfigResource("broker", str(node))]))
    assert found.keys() >= {one.of_node for one in TOPIC_SETTINGS.values() if one.of_node}
    values = {name: one.value for name, one in found.items()}
    assert values["node.id"] == values["broker.id"] == str(node)
    assert values["advertised.listeners"] == f"PLAINTEXT://{kafka.address}"
    assert values["min.insync.replicas"] == values["default.replication.factor"] == "1"
    assert values["log.retention.ms"] == str(RETENTION_MS_DEFAULT)
    assert values["auto.create.topics.enable"] == "true" and values["delete.topic.enable"] == "true"
    assert values["sasl.enabled.mechanisms"] == ""
    assert all(one.is_read_only for one in found.values())
    names = [one.name for one in shown_of_node(ServiceSettings(), 1, kafka.address, ())]
    assert len(names) == len(set(names)) == len(found)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (4, "", ErrorCode.NONE),
        (8, "1", ErrorCode.NONE),
        (32, "billing", ErrorCode.NONE),
        (4, "12345", ErrorCode.INVALID_REQUEST),
        (3, "x", ErrorCode.INVALID_REQUEST),
        (2, "nobody.made.it", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_kafka_15_other_resources_have_no_settings_or_are_refused(kafka, kind, name, code) -> None:
    with RawClient(kafka.port) as raw:
        (found,) = raw.ask(DescribeConfigsRequest([AskedResource(kind, name, None)])).results
    assert (found.error_code, found.configs) == (code, [])


def test_kafka_05_settings_of_nodes_and_of_unknown_topics_are_not_changed(admin, topic) -> None:
    entry = ConfigEntry("retention.ms", "60000", incremental_operation=SET)
    (broker,) = admin.list_topics(timeout=TIMEOUT_S).brokers
    node = admin.incremental_alter_configs([ConfigResource("broker", str(broker), incremental_configs=[entry])])
    assert _refused(node)[0] == KafkaError.INVALID_REQUEST
    assert _refused(_alter(admin, topic, ("retention.ms", "60000", SET)))[0] == KafkaError.UNKNOWN_TOPIC_OR_PART
