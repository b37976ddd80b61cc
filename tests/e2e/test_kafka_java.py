"""Kafka's own clients and tools, of three generations, against a service (SPEC KAFKA-3, 4, 9)."""

from __future__ import annotations

import contextlib
import json
import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from deltamq import Admin, Producer
from deltamq.api.first_start import make_administrator
from deltamq.mq.client.messages.received import ReceivedMessage
from deltamq.mq.errors import NotFound
from deltamq.mq.partitioners import kafka_hash
from tests.api.kafka.access.callers import send
from tests.api.kafka.door import stored_messages
from tests.api.running import config_for, until
from tests.e2e.service_process import ServiceProcess
from tests.free_ports import free_port
from tests.java import BROKER, CONNECT, GENERATIONS, Java

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

_CLIENTS = str(Path(__file__).parents[1] / "java" / "Clients.java")
_COUNT_PROGRAM = str(Path(__file__).parents[1] / "java" / "Count.java")
_REFUSED = str(Path(__file__).parents[1] / "java" / "Refused.java")
_COUNT = 250


class Served:
    """A service with a Kafka door."""

    def __init__(self, warehouse: Path) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.service = ServiceProcess(warehouse, "--kafka-port", str(port))

    def make_topic(self, topic: str, partitions: int) -> None:
        with Admin(self.service.url) as admin:
            admin.create_topic(topic, partitions=partitions)

    def stored(self, topic: str) -> dict[tuple[int, int], ReceivedMessage]:
        """Return all messages by partition and offset."""
        return stored_messages(self.service.url, topic)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path / "warehouse")
    yield found
    found.service.close()


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_kafka_04_java_clients_of_each_generation_write_and_read_the_rows_that_others_do(served, generation) -> None:
    lines = [
        line.split()
        for line in Java(GENERATIONS[generation]).run(_CLIENTS, served.address, "orders", "billing", str(_COUNT))
    ]
    sent = {int(number): (int(partition), int(offset)) for kind, number, partition, offset, *_ in _of("SENT", lines)}
    read = {int(line[1]): (int(line[2]), int(line[3])) for line in _of("READ", lines)}
    assert set(sent) == set(range(_COUNT)) and read == sent
    assert ["LISTED", "true"] in lines
    stored = served.stored("orders")
    assert {place: one.text for place, one in stored.items()} == {sent[i]: f"value {i}" for i in sent}
    assert {place: one.key for place, one in stored.items()} == {
        sent[i]: None if i % 5 == 0 else f"key {i}" for i in sent
    }
    # KAFKA-12: what the SDK and Spark compute for topics with Kafka's partitioner is what Java's clients do.
    keyed = {number: place for number, (place, _) in sent.items() if number % 5}
    assert keyed == {number: kafka_hash(f"key {number}") % 3 for number in keyed}
    assert {place: one.headers["number"] for place, one in stored.items()} == {sent[i]: str(i) for i in sent}
    with Admin(served.service.url) as admin:
        assert admin.get_group("billing").lag == 0
    committed = {int(partition): int(offset) for _, partition, offset in _of("COMMITTED", lines)}
    assert sum(committed.values()) == _COUNT


def test_kafka_15_kafkas_tools_show_and_change_settings(served) -> None:
    tools, server = Java(GENERATIONS["4.3"]), ("--bootstrap-server", served.address)
    made = ("--create", "--topic", "orders", "--partitions", "2", "--replication-factor", "1")
    settings = (
        "--config",
        "cleanup.policy=compact",
        "--config",
        "min.insync.replicas=1",
        "--config",
        "retention.ms=-1",
    )
    tools.run("org.apache.kafka.tools.TopicCommand", *server, *made, *settings)
    shown = tools.run("org.apache.kafka.tools.TopicCommand", *server, "--describe")
    head = next(line for line in shown if line.startswith("Topic: orders") and "PartitionCount: 2" in line)
    assert all(one in head for one in ("cleanup.policy=compact", "min.insync.replicas=1", "retention.ms=-1")), head
    for wanted in ("--under-min-isr-partitions", "--at-min-isr-partitions", "--unavailable-partitions"):
        found = tools.run("org.apache.kafka.tools.TopicCommand", *server, "--describe", wanted)
        ours = [partition for partition in _partitions(found) if "Topic: orders" in partition]
        assert len(ours) == (2 if wanted == "--at-min-isr-partitions" else 0), found


def _partitions(lines: list[str]) -> list[str]:
    return [line for line in lines if "Partition: " in line]


def _of(kind: str, lines: list[list[str]]) -> list[list[str]]:
    return [line for line in lines if line and line[0] == kind]


def test_kafka_03_kafkas_verifiable_clients_of_each_generation_agree_with_the_rows(served, generation) -> None:
    java = Java(GENERATIONS[generation])
    served.make_topic("orders", 2)
    servers = "--broker-list" if generation == "2.8" else "--bootstrap-server"
    written = java.run(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--topic", "orders", servers, served.address, "--max-messages", str(_COUNT), "--acks", "-1"),
    )
    events = [json.loads(line) for line in written if line.startswith("{")]
    acknowledged = {
        (one["partition"], one["offset"]): one["value"] for one in events if one["name"] == "producer_send_success"
    }
    assert len(acknowledged) == _COUNT
    assert {place: one.text for place, one in served.stored("orders").items()} == acknowledged
    read = java.run(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--topic", "orders", servers, served.address, "--group-id", "billing", "--max-messages", str(_COUNT)),
        *("--reset-policy", "earliest"),
    )
    events = [json.loads(line) for line in read if line.startswith("{")]
    assert sum(one["count"] for one in events if one["name"] == "records_consumed") == _COUNT
    assert any(one["name"] == "offsets_committed" and one["success"] for one in events)


@pytest.mark.parametrize("tools", ["3.9", "4.3"])
def test_kafka_09_kafkas_tool_for_groups_shows_them_and_their_lag(served, tools) -> None:
    java = Java(GENERATIONS[tools])
    java.run(_CLIENTS, served.address, "orders", "billing", str(_COUNT))
    command = ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", served.address)
    assert "billing" in java.run(*command, "--list")
    shown = [line.split() for line in java.run(*command, "--describe", "--group", "billing")]
    places = [line for line in shown if line[:2] == ["billing", "orders"]]
    assert len(places) == 3
    assert sum(int(line[3]) for line in places) == _COUNT and all(line[5] == "0" for line in places)


@pytest.mark.parametrize("tools", ["3.9", "4.3"])
def test_kafka_09_kafkas_tool_for_groups_deletes_offsets(served, tools) -> None:
    java = Java(GENERATIONS[tools])
    java.run(_CLIENTS, served.address, "orders", "billing", str(_COUNT))
    groups = ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", served.address)
    java.run(*groups, "--delete-offsets", "--group", "billing", "--topic", "orders")
    shown = [line.split() for line in java.run(*groups, "--describe", "--group", "billing")]
    assert [line for line in shown if line[:2] == ["billing", "orders"]] == []


def test_kafka_30_kafkas_own_formatter_reads_the_offsets_that_groups_have_committed(served) -> None:
    tools, server = Java(GENERATIONS["4.3"]), ("--bootstrap-server", served.address)
    served.make_topic("orders", 2)
    consumer = Consumer({"bootstrap.servers": served.address, "group.id": "billing", "enable.auto.commit": False})
    for offset in (0, 1):  # the second is beyond the end, and taken
        consumer.commit(offsets=[TopicPartition("orders", 1, offset, "text")], asynchronous=False)
    consumer.close()
    asked = ("--topic", "__consumer_offsets", "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000")
    formatter = ("--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter")
    (line,) = [
        one
        for one in tools.run("org.apache.kafka.tools.consumer.ConsoleConsumer", *server, *asked, *formatter)
        if one.startswith("{")
    ]
    record, _ = json.JSONDecoder().raw_decode(line)
    assert record["key"] == {"type": 1, "data": {"group": "billing", "topic": "orders", "partition": 1}}
    # The client writes the end of its C string, too.
    assert record["value"]["version"] == 3 and record["value"]["data"]["metadata"].rstrip("\0") == "text"
    topics = "org.apache.kafka.tools.TopicCommand"
    assert tools.run(topics, *server, "--list") == ["__consumer_offsets", "orders"]
    assert tools.run(topics, *server, "--list", "--exclude-internal") == ["orders"]


def test_kafka_04_a_connect_worker_writes_lines_of_a_file_as_messages(served, tmp_path) -> None:
    served.make_topic("lines", 2)
    lines = [f"line {number}" for number in range(100)]
    source = tmp_path / "source.txt"
    source.write_text("".join(f"{line}\n" for line in lines))
    worker = {
        "bootstrap.servers": served.address,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.storage.file.filename": str(tmp_path / "offsets"),
        "offset.flush.interval.ms": "500",
        "listeners": f"http://127.0.0.1:{free_port()}",
        "plugin.discovery": "only_scan",
    }
    connector = {
        "name": "lines",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(source),
        "topic": "lines",
    }
    paths = [_properties(tmp_path / "worker.properties", worker), _properties(tmp_path / "file.properties", connector)]
    program = Java(CONNECT).start("org.apache.kafka.connect.cli.ConnectStandalone", *paths)
    try:
        _until_stored(served, program, "lines", lines)
        with source.open("a") as file:
            file.write("one more\n")
        _until_stored(served, program, "lines", [*lines, "one more"])
    finally:
        program.stop()


def test_kafka_15_a_distributed_connect_worker_goes_on_after_a_restart(served, tmp_path) -> None:
    served.make_topic("lines", 2)
    lines = [f"line {number}" for number in range(100)]
    source = tmp_path / "source.txt"
    source.write_text("".join(f"{line}\n" for line in lines))
    worker = {
        "bootstrap.servers": served.address,
        "group.id": "connect",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": "500",
        "listeners": f"http://127.0.0.1:{free_port()}",
        "plugin.discovery": "only_scan",
    }
    for kind in ("config", "offset", "status"):  # compacted topics, which the worker makes
        worker |= {f"{kind}.storage.topic": f"connect.{kind}", f"{kind}.storage.replication.factor": "1"}
    worker |= {"offset.storage.partitions": "2", "status.storage.partitions": "1"}
    path = _properties(tmp_path / "worker.properties", worker)
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(source),
        "topic": "lines",
    }
    for further in (None, "after the restart"):
        program = Java(CONNECT).start("org.apache.kafka.connect.cli.ConnectDistributed", path)
        try:
            if further is None:
                _put_connector(program, worker["listeners"], "lines", connector)
            else:  # the worker knows its connector, and where that was
                lines.append(further)
                with source.open("a") as file:
                    file.write(f"{further}\n")
            _until_stored(served, program, "lines", lines)
        finally:
            program.stop()  # positions are stored with it


def test_kafka_15_a_streams_program_that_lost_its_memory_has_its_state_in_a_topic(served, tmp_path) -> None:
    for topic in ("words", "counted"):
        served.make_topic(topic, 2)
    for run, total in enumerate(("10", "21")):
        with Producer(served.service.url) as producer:
            producer.send_batch("words", [f"word {number % 3}" for number in range(30 + 3 * run)])
        program = Java(GENERATIONS["4.3"]).start(_COUNT_PROGRAM, served.address, str(tmp_path / f"state-{run}"))
        try:
            _until_counted(served, program, {f"word {number}": total for number in range(3)})
        finally:
            program.stop()


def _until_counted(served: Served, program: Any, wanted: dict[str, str]) -> None:
    def done() -> bool:
        assert program.is_running, program.lines()[-30:]
        stored = served.stored("counted")
        return {stored[place].key: stored[place].text for place in sorted(stored)} == wanted

    until(done, 120)


@contextlib.contextmanager
def _kafka(folder: Path) -> Iterator[str]:
    """Run Kafka itself, and yield its HOST:PORT."""
    port, controller = free_port(), free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "kafka"),
        "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    path, java = _properties(folder / "kafka.properties", settings), Java(BROKER)
    java.run("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", path)
    program = java.start("kafka.Kafka", path)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        program.stop()


@pytest.mark.parametrize("source", ["Kafka", "DeltaMQ"])
def test_kafka_15_mirrormaker_copies_messages_settings_and_offsets(served, tmp_path, source: str) -> None:
    with contextlib.ExitStack() as stack:
        if source == "Kafka":
            address = stack.enter_context(_kafka(tmp_path))
        else:
            (tmp_path / "other").mkdir()
            other = Served(tmp_path / "other" / "warehouse")
            stack.callback(other.service.close)
            address = other.address
        here, there = {"bootstrap.servers": address}, {"bootstrap.servers": served.address}
        settings = {"cleanup.policy": "compact", "retention.ms": "-1", "segment.bytes": "2000000"}
        topic = NewTopic("orders", 2, 1, config=settings)
        admin = AdminClient(here)
        (made,) = admin.create_topics([topic], operation_timeout=60, request_timeout=60).values()
        made.result(60)
        producer = KafkaProducer(here)
        for number in range(100):
            # a compacted topic takes no message without a key
            producer.produce("orders", f"order {number}", key=f"k{number}")
        assert producer.flush(60) == 0
        reader = Consumer({**here, "group.id": "billing"})
        ends = {index: reader.get_watermark_offsets(TopicPartition("orders", index), timeout=60)[1] for index in (0, 1)}
        at_end = [TopicPartition("orders", index, end) for index, end in ends.items()]

        def committed() -> bool:
            with contextlib.suppress(KafkaException):  # Kafka makes its topic of offsets first
                return bool(reader.commit(offsets=at_end, asynchronous=False))
            return False

        until(committed, 60)
        reader.close()
        mirror = {
            "clusters": "here, there",
            "here.bootstrap.servers": address,
            "there.bootstrap.servers": served.address,
            "here->there.enabled": "true",
            "here->there.topics": "orders",
            "sync.topic.acls.enabled": "false",
            "sync.group.offsets.enabled": "true",
            "emit.checkpoints.interval.seconds": "1",
            "sync.group.offsets.interval.seconds": "1",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "only_scan",
        }
        for kind in ("", *(f"{one}.topic." for one in ("checkpoints", "heartbeats", "offset-syncs"))):
            mirror[f"{kind}replication.factor"] = "1"
        for kind in ("offset", "status", "config"):
            mirror[f"{kind}.storage.replication.factor"] = "1"
        path = _properties(tmp_path / "mirror.properties", mirror)
        program = Java(CONNECT).start("org.apache.kafka.connect.mirror.MirrorMaker", path)
        stack.callback(program.stop)
        _until_stored(served, program, "here.orders", [f"order {number}" for number in range(100)])
        copied = AdminClient(there)
        (shown,) = copied.describe_configs([ConfigResource("topic", "here.orders")]).values()
        of_topic = {name: one.value for name, one in shown.result(60).items() if one.source == 1}
        assert of_topic == settings
        _until_committed(there, program, {index: end for index, end in ends.items() if end})


def _until_committed(client: dict[str, str], program: Any, wanted: dict[int, int]) -> None:
    reader = Consumer({**client, "group.id": "billing"})

    def done() -> bool:
        assert program.is_running, program.lines()[-30:]
        found = reader.committed([TopicPartition("here.orders", index) for index in wanted], 60)
        return {one.partition: one.offset for one in found} == wanted

    try:
        until(done, 120)
    finally:
        reader.close()


def _put_connector(program: Any, url: str, name: str, connector: dict[str, str]) -> None:
    def done() -> bool:
        assert program.is_running, program.lines()[-30:]
        body = json.dumps(connector).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/connectors/{name}/config", body, head, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status in (200, 201)
        except OSError:
            return False  # it is not there yet, or balances its work

    until(done, 120)


def _until_stored(served: Served, program: Any, topic: str, wanted: list[str]) -> None:
    def done() -> bool:
        assert program.is_running, program.lines()[-30:]
        try:
            return sorted(one.text for one in served.stored(topic).values()) == sorted(wanted)
        except NotFound:
            return False

    until(done, 120)


def _properties(path: Path, settings: dict[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def test_kafka_27_a_password_that_kafka_configs_sets_is_logged_in_with_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAMQ_SERVICE_AUTH", "true")
    _, token = make_administrator(config_for(tmp_path / "warehouse"), "admin")
    served = Served(tmp_path / "warehouse")
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="{}";'
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": login.format(token),
    }
    command = ("--bootstrap-server", served.address, "--command-config", _properties(tmp_path / "admin", settings))

    def users(*asked: str) -> list[str]:
        return Java(BROKER).run("kafka.admin.ConfigCommand", *command, "--entity-type", "users", *asked)

    def ada(mechanism: str, word: str) -> dict[str, Any]:
        sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        return {"bootstrap.servers": served.address, **sasl, "sasl.username": "ada", "sasl.password": word}

    with contextlib.closing(served.service), Admin(served.service.url, token=token) as admin:
        both = "SCRAM-SHA-256=[iterations=8192,password=one],SCRAM-SHA-512=[password=two]"
        users("--alter", "--entity-name", "ada", "--add-config", both)
        served.service.kill()
        served.service.start()
        admin.create_topic("orders", partitions=1)
        admin.add_acl("ada", "topic", ["publish"], pattern="orders")
        for mechanism, word in (("SCRAM-SHA-256", "one"), ("SCRAM-SHA-512", "two")):
            send(ada(mechanism, word), "orders", "by her password")
        (shown,) = [line for line in users("--describe", "--entity-name", "ada") if "SCRAM" in line]
        assert "SCRAM-SHA-256=iterations=8192" in shown and "SCRAM-SHA-512=iterations=4096" in shown
        assert {one.mechanism for one in admin.get_principal("ada").passwords} == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
        users("--alter", "--entity-name", "ada", "--delete-config", "SCRAM-SHA-256")
        admin.remove_password("ada", "SCRAM-SHA-512")
        assert admin.get_principal("ada").passwords == []
        with pytest.raises(KafkaException):
            send(ada("SCRAM-SHA-512", "two") | {"message.timeout.ms": 2_000}, "orders", "never")


def test_kafka_28_quotas_that_kafka_configs_sets_are_shown_after_a_kill(served) -> None:
    def configs(*asked: str) -> str:
        lines = Java(BROKER).run("kafka.admin.ConfigCommand", "--bootstrap-server", served.address, *asked)
        return "\n".join(lines)

    app = ("--entity-type", "clients", "--entity-name", "app")
    anybody = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-default")
    configs("--alter", *app, "--add-config", "producer_byte_rate=20000,consumer_byte_rate=30000")
    configs("--alter", *anybody, "--add-config", "producer_byte_rate=9000")
    configs("--alter", *app, "--delete-config", "consumer_byte_rate")
    served.service.kill()
    served.service.start()
    shown = configs("--describe", *app)
    assert "producer_byte_rate=20000" in shown and "consumer_byte_rate" not in shown
    assert "producer_byte_rate=9000" in configs("--describe", *anybody)
    with pytest.raises(AssertionError, match="request_percentage is not enforced here"):
        configs("--alter", *app, "--add-config", "request_percentage=50")


def test_kafka_24_javas_consumer_reads_what_goes_out_in_every_compression(served) -> None:
    names = {f"codec.{one}" for one in ("gzip", "lz4", "snappy", "zstd")}
    tools, server = Java(GENERATIONS["4.3"]), ("--bootstrap-server", served.address)
    client = AdminClient({"bootstrap.servers": served.address})
    made = [NewTopic(name, 1, config={"compression.type": name.partition(".")[2]}) for name in names]
    for future in client.create_topics(made).values():
        future.result(30)
    # more than one block of lz4, some of it as random as can be
    sent = {f"{name} {at} {random.Random(at).randbytes(100).hex() * (at % 3)}" for name in names for at in range(1_000)}
    producer = KafkaProducer({"bootstrap.servers": served.address})
    for text in sent:
        producer.produce(text.partition(" ")[0], text)
    assert producer.flush(60) == 0
    asked = ("--include", r"codec\..*", "--from-beginning", "--max-messages", str(len(sent)), "--timeout-ms", "60000")
    read = tools.run("org.apache.kafka.tools.consumer.ConsoleConsumer", *server, *asked)
    assert set(read) & sent == sent


def test_kafka_25_javas_clients_pass_over_what_did_not_fit_and_hear_which_values_do_not(served) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    with Admin(served.service.url) as admin:
        for topic, mode in (("kept", "quarantine"), ("strict", "reject")):
            wanted = {"format": "json", "schema": json.dumps(schema), "on_invalid": mode}
            admin.create_topic(topic, partitions=1, schema=wanted)
    good, producer = '{"id": "a"}', KafkaProducer({"bootstrap.servers": served.address})
    for value in (good, "x", good, *["x" * 100] * 3_000, good):
        producer.produce("kept", value)
    assert producer.flush(60) == 0
    java, server = Java(GENERATIONS["4.3"]), ("--bootstrap-server", served.address)
    for isolation in ("read_uncommitted", "read_committed"):
        asked = ("--topic", "kept", "--from-beginning", "--max-messages", "3", "--timeout-ms", "60000")
        small = ("--command-property", "max.partition.fetch.bytes=10000", "--isolation-level", isolation)
        assert java.run("org.apache.kafka.tools.consumer.ConsoleConsumer", *server, *asked, *small) == [good] * 3
    fate = java.run(_REFUSED, served.address, "strict", good, "x", '{"id": 7}')
    kinds = [one.partition(":")[0] for one in fate]
    # What would fit was refused because of the others.
    assert kinds == ["KafkaException", "InvalidRecordException", "InvalidRecordException"]
    assert "JSON" in fate[1] and "id: " in fate[2], fate
    assert served.stored("strict") == {}
    assert java.run(_REFUSED, served.address, "strict", good, good) == ["stored"] * 2
