"""Topics whose keys go by Kafka's hash: all ways to send agree on the partition of a key (SPEC KAFKA-12)."""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
)

from deltamq import Admin, PopConsumer
from deltamq import Producer as MqProducer
from deltamq.mq.client.cli import root as cli
from deltamq.mq.client.messages.message import Message
from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.partitioners import kafka_hash
from tests.api.kafka.door import KafkaApi, kafka_running, stored_messages
from tests.api.running import arrow_stream, until

TIMEOUT_S = 30
PARTITIONER = "deltamq.partitioner"
ARROW = "application/vnd.apache.arrow.stream"
KEYS = ["", "é", "naïve", "订单-42", "🚚", "\x00", "k" * 500, *(f"order-{number}" for number in range(400))]


@pytest.fixture
def admin(kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.address})


def _url(kafka: KafkaApi) -> str:
    return f"http://127.0.0.1:{kafka.api.port}"


def _done(futures) -> dict[Any, Any]:
    return {name: future.result(TIMEOUT_S) for name, future in futures.items()}


def _refused(futures) -> tuple[int, str]:
    (future,) = futures.values()
    with pytest.raises(KafkaException) as error:
        future.result(TIMEOUT_S)
    return error.value.args[0].code(), error.value.args[0].str()


def _librdkafka(kafka: KafkaApi, topic: str, keys, **settings) -> list[tuple[str, KafkaError | None]]:
    """Send a record for each key, with the key as its value; return their errors in the order of the answers."""
    told: list[tuple[str, KafkaError | None]] = []
    producer = Producer(
        {"bootstrap.servers": kafka.address, "partitioner": "murmur2_random", "linger.ms": 5, **settings}
    )
    for key in keys:
        producer.produce(topic, key=key, value=key, on_delivery=lambda e, m: told.append((m.value().decode(), e)))
    assert producer.flush(TIMEOUT_S) == 0
    return told


def _homes(kafka: KafkaApi, topic: str) -> dict[str, set[int]]:
    """Return the numbers of the partitions that have messages of each key."""
    found: dict[str, set[int]] = {}
    for (number, _), message in stored_messages(_url(kafka), topic).items():
        found.setdefault(str(message.key), set()).add(number)
    return found


def _rest(kafka: KafkaApi, topic: str) -> None:
    for key in KEYS[:20]:
        assert kafka.api.send(topic, {"body": key, "key": key}).status == 200
    assert kafka.api.send(topic, *({"body": key, "key": key} for key in KEYS)).status == 200
    body = arrow_stream(body=pa.array([key.encode() for key in KEYS]), key=pa.array(KEYS))
    assert kafka.api.produce(topic, body, ARROW).status == 200


def _sdk(kafka: KafkaApi, topic: str) -> None:
    rows = pa.table({"body": [key.encode() for key in KEYS], "key": pa.array(KEYS)})
    with MqProducer(_url(kafka)) as producer:
        futures = [producer.send_soon(topic, key.encode(), key=key) for key in KEYS]
        producer.send_batch(topic, [Message(key.encode(), key) for key in KEYS])
        producer.send_arrow(topic, rows)
        producer.send_table(topic, rows, progress=False)
        for future in futures:
            future.result(TIMEOUT_S)


@pytest.mark.parametrize("strategy", ["best_tried", "strict"])
def test_kafka_12_all_ways_put_a_key_into_the_same_partition(kafka, topic, strategy) -> None:
    kafka.api.put_topic(topic, partitions=7, partitioner="kafka", order_strategy=strategy)
    wanted = {key: {kafka_hash(key) % 7} for key in KEYS}
    assert {number for homes in wanted.values() for number in homes} == set(range(7))
    assert all(error is None for _, error in _librdkafka(kafka, topic, KEYS))
    assert _homes(kafka, topic) == wanted
    _rest(kafka, topic)
    assert _homes(kafka, topic) == wanted
    _sdk(kafka, topic)
    assert _homes(kafka, topic) == wanted


def test_kafka_12_aiokafka_chooses_the_same_partition(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=7, partitioner="kafka", order_strategy="strict")

    async def play() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.address, linger_ms=5) as producer:
            for one in [await producer.send(topic, key.encode(), key=key.encode()) for key in KEYS]:
                await one

    asyncio.run(play())
    assert _homes(kafka, topic) == {key: {kafka_hash(key) % 7} for key in KEYS}


def test_kafka_12_in_other_topics_keys_go_by_sparks_hash(kafka, topic) -> None:
    route = kafka.api.put_topic(topic, partitions=7)
    assert (route["partitioner"], route["logical_partitions"]) == ("lp", 1024)
    _rest(kafka, topic)
    _sdk(kafka, topic)
    found = kafka.api.service.topics.find(topic)
    assert found is not None
    assert _homes(kafka, topic) == {key: {found.route.partition_of(key)} for key in KEYS}


def test_kafka_12_the_setting_is_made_shown_and_kept_over_rest_and_the_sdk(kafka, topic) -> None:
    with Admin(_url(kafka)) as admin:
        made = admin.create_topic(topic, partitions=3, partitioner="kafka")
        assert made.partitioner == admin.get_topic(topic).partitioner == "kafka"
        assert [one.logical_partitions for one in made.partitions] == [(), (), ()]
        assert admin.create_topic(topic, retention_ms=60_000).partitioner == "kafka"
        with pytest.raises(Conflict) as refused:
            admin.create_topic(topic, partitioner="lp")
        assert (refused.value.code, refused.value.field) == ("partitioner_fixed", "partitioner")
        with pytest.raises(Unprocessable) as static:
            admin.put_static_topic(f"{topic}.static", 2, partitioner="kafka")
        assert (static.value.code, static.value.field) == ("partitioner_not_static", "partitioner")
    shown = kafka.api.call("GET", f"/v1/topics/{topic}").json
    assert (shown["partitioner"], shown["logical_partitions"]) == ("kafka", 0)
    wrong = kafka.api.call("PUT", f"/v1/topics/{topic}.x", {"partitioner": "crc32"})
    assert (wrong.status, wrong.json["field"]) == (422, "partitioner")


def test_kafka_12_global_topics_are_refused(kafka, topic) -> None:
    wanted = {"static": True, "total_queues": 2, "scope": "global", "clusters": ["deltamq"], "partitioner": "kafka"}
    refused = kafka.api.call("PUT", f"/v1/topics/{topic}", wanted)
    assert (refused.status, refused.json["code"], refused.json["field"]) == (
        422,
        "partitioner_not_static",
        "partitioner",
    )


def test_kafka_12_kafkas_administrators_set_and_see_it(kafka, admin, topic) -> None:
    _done(admin.create_topics([NewTopic(topic, 3, 1, config={PARTITIONER: "kafka", "retention.ms": "60000"})]))
    assert kafka.api.call("GET", f"/v1/topics/{topic}").json["partitioner"] == "kafka"
    (found,) = _done(admin.describe_configs([ConfigResource("topic", topic)])).values()
    entry = found[PARTITIONER]
    assert (entry.value, entry.is_read_only, ConfigSource(entry.source)) == (
        "kafka",
        True,
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
    )
    code, _ = _refused(admin.create_topics([NewTopic(f"{topic}.x", 1, config={PARTITIONER: "crc32"})]))
    assert code == KafkaError.INVALID_CONFIG
    plain = f"{topic}.plain"
    _done(admin.create_topics([NewTopic(plain, 3)]))
    (found,) = _done(admin.describe_configs([ConfigResource("topic", plain)])).values()
    assert (found[PARTITIONER].value, ConfigSource(found[PARTITIONER].source)) == ("lp", ConfigSource.DEFAULT_CONFIG)


def _altering(topic: str, value: str | None, operation: AlterConfigOpType) -> list[ConfigResource]:
    entry = ConfigEntry(PARTITIONER, value, incremental_operation=operation)
    return [ConfigResource("topic", topic, incremental_configs=[entry])]


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_kafka_12_kafkas_administrators_cannot_change_it(kafka, admin, topic) -> None:
    kafka.api.put_topic(topic, partitions=2, partitioner="kafka")
    for value, operation in (("lp", AlterConfigOpType.SET), (None, AlterConfigOpType.DELETE)):
        code, text = _refused(admin.incremental_alter_configs(_altering(topic, value, operation)))
        assert code == KafkaError.INVALID_CONFIG and "another topic" in text
    _done(admin.incremental_alter_configs(_altering(topic, "kafka", AlterConfigOpType.SET)))
    # what names all settings again, as older tools do, changes nothing here
    again = {PARTITIONER: "kafka", "retention.ms": "60000"}
    _done(admin.alter_configs([ConfigResource("topic", topic, set_config=again)]))
    _done(admin.alter_configs([ConfigResource("topic", topic, set_config={"retention.ms": "50000"})]))
    assert kafka.api.call("GET", f"/v1/topics/{topic}").json["partitioner"] == "kafka"


def test_kafka_12_a_strict_topic_takes_keys_from_kafka_where_they_belong_and_nowhere_else(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=4, partitioner="kafka", order_strategy="strict")
    assert all(error is None for _, error in _librdkafka(kafka, topic, KEYS))
    binary = [b"\xff\x00", b"\xfe" * 9]
    producer = Producer({"bootstrap.servers": kafka.address, "partitioner": "murmur2_random"})
    failed: list[KafkaError] = []
    for key in binary:
        producer.produce(topic, key=key, on_delivery=lambda e, _: failed.append(e) if e else None)
    producer.produce(
        topic, value="without a key", partition=3, on_delivery=lambda e, _: failed.append(e) if e else None
    )
    assert producer.flush(TIMEOUT_S) == 0 and not failed
    before = kafka.api.stored(topic)
    assert sum(before.values()) == len(KEYS) + 3
    # Its default is CRC-32: some keys are refused, and a whole batch with them.
    strange = _librdkafka(kafka, topic, KEYS, partitioner="consistent_random", **{"batch.num.messages": 1})
    errors = {key: error for key, error in strange if error is not None}
    assert {error.code() for error in errors.values()} == {KafkaError.POLICY_VIOLATION}
    assert 0.5 * len(KEYS) < len(errors) < len(KEYS)
    stored = _homes(kafka, topic)
    assert all(stored[key] == {kafka_hash(key) % 4} for key in KEYS)
    assert sum(kafka.api.stored(topic).values()) == sum(before.values()) + len(KEYS) - len(errors)


def test_kafka_12_one_key_of_another_partition_refuses_its_batch(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=2, partitioner="kafka", order_strategy="strict")
    here = [key for key in KEYS if kafka_hash(key) % 2 == 0][:50]
    wrong = next(key for key in KEYS if kafka_hash(key) % 2 == 1)
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 2_000})
    for key in [*here, wrong]:
        producer.produce(topic, key=key, partition=0, on_delivery=lambda e, _: told.append(e))
    assert producer.flush(TIMEOUT_S) == 0
    assert len(told) == 51 and {error.code() for error in told if error} == {KafkaError.POLICY_VIOLATION}
    assert all(error is not None for error in told) and sum(kafka.api.stored(topic).values()) == 0


def test_kafka_12_a_strict_topic_does_not_grow(kafka, admin, topic) -> None:
    kafka.api.put_topic(topic, partitions=2, partitioner="kafka", order_strategy="strict")
    refused = kafka.api.call("PUT", f"/v1/topics/{topic}", {"partitions": 3})
    assert (refused.status, refused.json["code"], refused.json["field"]) == (
        409,
        "partitions_cannot_grow",
        "partitions",
    )
    for validate_only in (True, False):
        asked = admin.create_partitions([NewPartitions(topic, 3)], validate_only=validate_only)
        code, text = _refused(asked)
        assert code == KafkaError.INVALID_PARTITIONS and "strict" in text
    assert len(kafka.api.partitions(topic)) == 2


def test_kafka_12_another_topic_grows_and_its_keys_go_elsewhere_from_then_on(kafka, admin, topic) -> None:
    kafka.api.put_topic(topic, partitions=2, partitioner="kafka")
    bodies: list[bytes] = []

    def take(message) -> None:
        bodies.append(message.body)

    with MqProducer(_url(kafka)) as producer, PopConsumer(_url(kafka), f"{topic}.billing", topic, take):
        for future in [producer.send_soon(topic, b"before", key=key) for key in KEYS]:
            future.result(TIMEOUT_S)
        _done(admin.create_partitions([NewPartitions(topic, 5)]))
        assert kafka.api.call("GET", f"/v1/topics/{topic}").json["partitions"][2]["logical_partitions"] == []
        # the service places keys by the newest route, whatever the producer knows
        for future in [producer.send_soon(topic, b"after", key=key) for key in KEYS]:
            future.result(TIMEOUT_S)
        until(lambda: len(bodies) == 2 * len(KEYS), TIMEOUT_S)  # nothing waits for what is elsewhere
    found = stored_messages(_url(kafka), topic)
    homes = {(message.key, message.body): number for (number, _), message in found.items()}
    assert homes == {
        **{(key, b"before"): kafka_hash(key) % 2 for key in KEYS},
        **{(key, b"after"): kafka_hash(key) % 5 for key in KEYS},
    }
    assert all(error is None for _, error in _librdkafka(kafka, topic, KEYS))
    assert all(kafka_hash(key) % 5 in numbers for key, numbers in _homes(kafka, topic).items())


def test_kafka_12_routes_by_hand_count_by_place(kafka, topic) -> None:
    routes = [f"{topic}.z@broker-a", f"{topic}@broker-a", f"{topic}.a@broker-a"]
    kafka.api.put_topic(topic, routes=routes, partitioner="kafka")
    _rest(kafka, topic)
    assert list(kafka.api.partitions(topic)) == routes
    assert _homes(kafka, topic) == {key: {kafka_hash(key) % 3} for key in KEYS}


def test_kafka_12_keys_of_a_closed_partition_go_to_the_others_evenly_or_are_refused(kafka, topic) -> None:
    free, strict = topic, f"{topic}.strict"
    for name, strategy in ((free, "best_tried"), (strict, "strict")):
        kafka.api.put_topic(name, partitions=4, partitioner="kafka", order_strategy=strategy)
        second = quote(list(kafka.api.partitions(name))[1], safe="")
        closed = kafka.api.call("PUT", f"/v1/topics/{name}/partitions/{second}", {"writable": False})
        assert closed.status == 200, closed
    assert kafka.api.send(free, *({"body": key, "key": key} for key in KEYS)).status == 200
    homes = _homes(kafka, free)
    for key, (number,) in ((key, tuple(numbers)) for key, numbers in homes.items()):
        assert number == kafka_hash(key) % 4 or kafka_hash(key) % 4 == 1
    moved = [number for key, numbers in homes.items() if kafka_hash(key) % 4 == 1 for number in numbers]
    assert set(moved) == {0, 2, 3} and min(map(moved.count, (0, 2, 3))) > len(moved) / 5
    held = next(key for key in KEYS if kafka_hash(key) % 4 == 1)
    refused = kafka.api.send(strict, {"body": "x", "key": held})
    assert (refused.status, refused.json["code"]) == (503, "not_writable")


def test_kafka_12_it_holds_across_a_restart(tmp_path, topic) -> None:
    with kafka_running(tmp_path) as kafka:
        kafka.api.put_topic(topic, partitions=3, partitioner="kafka", order_strategy="strict")
        _rest(kafka, topic)
    with kafka_running(tmp_path) as kafka:
        assert kafka.api.call("GET", f"/v1/topics/{topic}").json["partitioner"] == "kafka"
        _sdk(kafka, topic)
        assert all(error is None for _, error in _librdkafka(kafka, topic, KEYS))
        assert _homes(kafka, topic) == {key: {kafka_hash(key) % 3} for key in KEYS}


def _deltamq(kafka: KafkaApi, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments, "--url", _url(kafka)])
    sys.stdout.flush()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_kafka_12_the_command_line_makes_and_shows_it(kafka, topic, capsys) -> None:
    assert _deltamq(kafka, capsys, "topic", "create", topic, "--partitions", "2", "--partitioner", "kafka")[0] == 0
    status, out, _ = _deltamq(kafka, capsys, "topic", "show", topic)
    assert status == 0 and "partitioner kafka" in out and "[0," not in out
    status, _, err = _deltamq(kafka, capsys, "topic", "create", topic, "--partitioner", "lp")
    assert status == 1 and "error: partitioner_fixed: " in err and "--partitioner" in err
    plain = f"{topic}.plain"
    assert _deltamq(kafka, capsys, "topic", "create", plain, "--partitions", "2")[0] == 0
    assert "partitioner lp" in _deltamq(kafka, capsys, "topic", "show", plain)[1]
