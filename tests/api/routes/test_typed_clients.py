"""Values of topics with a schema through the SDK and the command line (SPEC TYPE-30)."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pytest

from deltamq import (
    Admin,
    AsyncProducer,
    OrderlyConsumer,
    Outbox,
    OutboxRelay,
    PopConsumer,
    Producer,
    PullConsumer,
    Verdict,
)
from deltamq.mq.client.cli.group_consume import json_line, text_line
from deltamq.mq.client.cli.root import main
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.messages.received import ReceivedMessage
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.errors import Refused, Unprocessable
from tests.api.running import Api, config_for, running
from tests.typed import record

DDL = "id STRING NOT NULL, amount DECIMAL(12,2), at TIMESTAMP, counts MAP<STRING, BIGINT>"
AT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
VALUE = {"id": "a", "amount": Decimal("12.50"), "at": AT, "counts": {"x": 2**53 + 1}}


@dataclass
class Place:
    zip: str
    floor: int | None = None


@dataclass
class Order:
    id: str
    place: Place | None = None
    tags: list[str] = field(default_factory=list)


class OrderDict(TypedDict):
    id: str
    amount: int


class OrderStruct(msgspec.Struct):
    id: str
    amount: int | None = None


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(config_for(tmp_path)) as api:
        yield api


@pytest.fixture
def url(api: Api) -> str:
    return f"http://127.0.0.1:{api.port}"


def read(url: str, count: int, topic: str = "orders", typed: bool = True) -> list[ReceivedMessage]:
    with PullConsumer(url, topic, typed=typed) as consumer:
        found: list[ReceivedMessage] = []
        while len(found) < count:
            found += consumer.poll(wait_ms=5_000)
    return found


def test_type_30_values_are_sent_and_come_back_as_pythons_own_types(url: str) -> None:
    with Admin(url) as admin:
        info = admin.create_topic("orders", partitions=1, schema={"format": "columns", "schema": DDL})
        assert info.schema is not None and info.schema.format == "columns"
    with Producer(url) as producer:
        producer.send("orders", value=VALUE, key="k")
        producer.send_soon("orders", value=json.dumps({"id": "b"})).result(30)
        batch = [Message(value={"id": "c"}), Message(value=b'{"id": "d"}', key="k"), Message(b'{"id": "e"}')]
        assert producer.send_batch("orders", batch).count == 3
        for wrong in ({"value": {"id": "x"}, "body": b"x"}, {}):
            with pytest.raises(Refused):
                producer.send("orders", **wrong)  # type: ignore[arg-type]
        kind = pa.struct([("id", pa.string()), ("amount", pa.decimal128(12, 2))])
        rows = pa.table({"key": ["k", "l"], "value": pa.array([{"id": "f", "amount": Decimal(1)}, {"id": "g"}], kind)})
        assert (
            producer.send_arrow("orders", rows).count == producer.send_table("orders", rows, progress=False).count == 2
        )
        with pytest.raises(Unprocessable):
            producer.send("orders", value={"id": object()})
        with pytest.raises(Unprocessable) as refused:
            producer.send("orders", value={"id": "a", "amount": "many"})
        assert refused.value.code == "invalid_value"

    async def send() -> None:
        async with AsyncProducer(url) as producer:
            await producer.send("orders", value={"id": "h"})

    asyncio.run(send())
    messages = read(url, 10)
    assert messages[0].value == VALUE and messages[0].key == "k"
    assert [one.value and one.value["id"] for one in messages] == [*"abcdefgfgh"]


def test_type_16_numbers_that_are_not_finite_are_names_in_json_and_come_back(url: str) -> None:
    with Admin(url) as admin:
        admin.create_topic("numbers", partitions=1, schema={"format": "columns", "schema": "v DOUBLE, w ARRAY<DOUBLE>"})
    sent = {"v": math.inf, "w": [-math.inf, 1.5]}
    with Producer(url) as producer:
        producer.send("numbers", value=sent)
    (message,) = read(url, 1, "numbers")
    assert message.value == sent
    assert json.loads(json_line(message))["value"] == {"v": "Infinity", "w": ["-Infinity", 1.5]}
    assert b"-Infinity" in text_line(message)
    assert [one.body for one in read(url, 1, "numbers", typed=False)] == [b'{"v":"Infinity","w":["-Infinity",1.5]}']


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Order, Order("a", Place("1"), ["x"]), {"id": "a", "place": {"zip": "1", "floor": None}, "tags": ["x"]}),
        (OrderDict, {"id": "a", "amount": 3}, {"id": "a", "amount": 3}),
        (OrderStruct, OrderStruct("a"), {"id": "a", "amount": None}),
    ],
)
def test_type_30_a_pythons_class_is_a_schema_and_its_instances_are_values(
    url: str, kind: type, value: Any, expected: dict[str, Any]
) -> None:
    with Admin(url) as admin:
        admin.create_topic("orders", partitions=1, schema=kind)
        admin.create_topic("orders", schema={"schema": kind, "on_invalid": "quarantine"})
    with Producer(url) as producer:
        producer.send("orders", value=value)
    assert read(url, 1)[0].value == expected


def test_type_30_popped_and_ordered_messages_have_values(url: str) -> None:
    with Admin(url) as admin:
        admin.create_topic("orders", partitions=1, schema={"format": "columns", "schema": DDL})
        admin.create_group("exclusive", consume_strategy="exclusive", order=True)
    with Producer(url) as producer:
        producer.send("orders", value=VALUE)
    found: dict[str, Any] = {}
    done = {"popped": Event(), "ordered": Event()}

    def handler(name: str) -> Any:
        def handle(message: ReceivedMessage) -> None:
            found[name] = message.value
            done[name].set()

        return handle

    with PopConsumer(url, "shared", "orders", handler("popped"), typed=True):
        assert done["popped"].wait(30)
    with OrderlyConsumer(url, "exclusive", "orders", handler("ordered"), typed=True):
        assert done["ordered"].wait(30)
    assert found == {"popped": VALUE, "ordered": VALUE}
    with PopClient(url, "third") as client:
        (message,) = client.pop("orders", typed=True).messages
        assert message.value == VALUE and client.ack([message.handle]) == []


def test_type_30_consumers_of_each_kind_are_told_what_did_not_fit(url: str) -> None:
    with Admin(url) as admin:
        admin.create_topic("orders", partitions=1, schema={"schema": OrderDict, "on_invalid": "rescue"})
        admin.create_group("exclusive", consume_strategy="exclusive", order=True)
    with Producer(url) as producer:
        producer.send_batch("orders", [b'{"id": "a", "amount": "many"}', b'{"id": "b", "amount": 1}', b"nonsense"])
    found: dict[str, list[ReceivedMessage]] = {"popped": [], "ordered": [], "pulled": read(url, 3)}
    done = {"popped": Event(), "ordered": Event()}

    def handler(name: str, answer: object = None) -> Any:
        def handle(message: ReceivedMessage) -> object:
            found[name].append(message)
            if len(found[name]) == 3:
                done[name].set()
            return answer

        return handle

    with PopConsumer(url, "shared", "orders", handler("popped"), typed=True):
        assert done["popped"].wait(30)
    with OrderlyConsumer(url, "exclusive", "orders", handler("ordered", Verdict.SUCCESS), typed=True):
        assert done["ordered"].wait(30)
    for messages in found.values():
        first, second, third = sorted(messages, key=lambda message: message.offset)
        assert first.value == {"id": "a", "amount": None} and first.rescued is not None
        assert json.loads(first.rescued)["rest"] == {"amount": "many"}
        assert second.value == {"id": "b", "amount": 1} and second.rescued is None
        assert third.value is None and third.rescued is not None
        assert json.loads(third.rescued)["body"] == "nonsense"


def test_type_30_a_value_that_commits_in_a_database_becomes_columns(url: str, tmp_path: Path) -> None:
    with Admin(url) as admin:
        admin.create_topic(
            "orders", partitions=1, schema={"format": "avro", "wire": "confluent", "schema": record(("id", "long"))}
        )
    outbox, shop = Outbox(), tmp_path / "shop.db"
    with closing(sqlite3.connect(shop)) as database, database:
        outbox.create(database)
        outbox.put(database, "orders", Message(value={"id": 2**53 + 1}, key="k"))
        outbox.put(database, "orders", Message(value={"id": "wrong"}, key="l"))
        with pytest.raises(Unprocessable):
            outbox.put(database, "orders", Message(value=object()))
    with OutboxRelay(lambda: sqlite3.connect(shop), url) as relay:
        relay.drain()
    (message,) = read(url, 1)
    assert (message.key, message.value) == ("k", {"id": 2**53 + 1}) and message.body.startswith(b"\0")
    with closing(sqlite3.connect(shop)) as database:
        (aside,) = outbox.status(database).messages
    assert (aside.key, aside.code) == ("l", "invalid_value")


Run = Callable[..., str]


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--url", url])
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == status, (out, err)
        return out

    return run


def test_type_30_files_of_what_there_should_be_say_schemas(run: Run, url: str, tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    text = DDL.replace(" NOT NULL", "")
    file.write_text(
        "[topics.orders]\npartitions = 1\n"
        f'schema = {{ format = "columns", schema = "{text}", on_invalid = "rescue" }}\n'
    )
    assert "create" in run("apply", str(file)) and "nothing to change" in run("apply", str(file))
    described = run("describe")
    assert "on_invalid" in described and "counts MAP" in described
    (tmp_path / "described.toml").write_text(described)
    assert "nothing to change" in run("apply", str(tmp_path / "described.toml"))
    file.write_text(file.read_text().replace("counts MAP", "note STRING, counts MAP"))
    assert "note STRING" in run("apply", str(file))
    with Admin(url) as admin:
        schema = admin.get_topic("orders").schema
        assert schema is not None and (schema.version, schema.on_invalid) == (2, "rescue")
        admin.create_topic("orders", schema={"on_invalid": "reject"})
    assert "rescue" in run("describe", "--drift", status=1)


def test_type_30_a_schema_of_avro_that_is_written_in_another_way_is_no_change(run: Run, tmp_path: Path) -> None:
    file, described = tmp_path / "topics.toml", tmp_path / "described.toml"
    text = '{"name":"shop.Order","type":"record","fields":[{"type":{"type":"int"},"name":"id"}]}'
    file.write_text(f"""[topics.orders]\npartitions = 1\nschema = {{ format = "avro", schema = '{text}' }}\n""")
    assert "create" in run("apply", str(file)) and "nothing to change" in run("apply", str(file))
    described.write_text(run("describe"))
    assert "nothing to change" in run("apply", str(described))
    file.write_text(file.read_text().replace('"name":"id"', '"name":"number"'))
    assert "number" in run("apply", str(file), status=1)


def test_type_30_topics_values_and_messages_on_the_command_line(run: Run, tmp_path: Path) -> None:
    ddl, lines = tmp_path / "orders.ddl", tmp_path / "orders.ndjson"
    ddl.write_text(DDL)
    run("topic", "create", "orders", "--partitions", "1", "--format", "columns", "--schema-file", str(ddl))
    assert "schema columns, subject orders-value version 1" in run("topic", "show", "orders")
    lines.write_text('{"id": "a", "amount": "1.50"}\n{"id": "b"}\n')
    run("produce", "orders", str(lines), "--value")
    lines.write_text('{"value": {"id": "c"}, "key": "k"}\n')
    run("produce", "orders", str(lines))
    shown = [json.loads(line) for line in run("consume", "orders", "--typed", "--json").splitlines()]
    assert [one["value"]["id"] for one in shown] == ["a", "b", "c"] and shown[0]["value"]["amount"] == "1.50"
    shown = [json.loads(line) for line in run("consume", "orders", "--group", "g", "--typed", "--json").splitlines()]
    assert [one["value"]["id"] for one in shown] == ["a", "b", "c"]
    run("topic", "create", "orders", "--on-invalid", "rescue")
    assert "on invalid: rescue" in run("topic", "show", "orders")
