"""A schema grows while two processes append, a group consumes, and files are rolled up: nothing stops (SPEC TYPE-5)."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltamq.mq.schemas.registry import Version
from deltamq.mq.schemas.setting import SchemaSetting
from deltamq.tables.typed.codec import codec_of
from tests.api.running import Api, config_for, running


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    optional = [{"name": field, "type": ["null", kind], "default": None} for field, kind in fields]
    return {"type": "record", "name": name, "fields": optional}


#: A field is added, then one is removed and one inside of a struct added.
VERSIONS = (
    record("Order", ("id", "long"), ("name", "string")),
    record("Order", ("id", "long"), ("name", "string"), ("place", record("Place", ("zip", "string")))),
    record("Order", ("id", "long"), ("place", record("Place", ("zip", "string"), ("floor", "int")))),
)
SENT_PER_VERSION = 20


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[Api, Api]]:
    with ExitStack() as both:
        first = both.enter_context(running(config_for(tmp_path, brokers=("broker-a",))))
        yield first, both.enter_context(running(config_for(tmp_path, brokers=("broker-b",))))


def put(api: Api, schema: dict[str, Any]) -> Any:
    asked = {"format": "avro", "wire": "confluent", "schema": json.dumps(schema), "on_invalid": "quarantine"}
    return api.call("PUT", "/v1/topics/orders", {"partitions": 4, "schema": asked})


def body_of(number: int, version: int) -> str:
    """Return a body as a producer makes it that was started with this version."""
    schema = Version(
        subject="orders-value", version=1, id=version + 1, schema_type="AVRO", schema=json.dumps(VERSIONS[version])
    )
    setting = SchemaSetting(format="avro", subject="orders-value", wire="confluent")
    codec = codec_of(setting, [schema], lambda _: schema, lambda _: [schema])
    return base64.b64encode(codec.encode([value_of(number, version)])[0].as_py()).decode()


def value_of(number: int, version: int) -> dict[str, Any]:
    value: dict[str, Any] = {"id": number}
    if version < 2:
        value["name"] = f"n{number}"
    if version == 1:
        value["place"] = {"zip": f"{number}"}
    if version == 2:
        value["place"] = {"zip": f"{number}", "floor": number}
    return value


def test_type_5_nothing_stops_while_a_schema_grows_under_load(services: tuple[Api, Api]) -> None:
    assert put(services[0], VERSIONS[0]).status == 201
    sent: dict[int, int] = {}
    known, failed = [0], list[Any]()
    stop = threading.Event()

    def produce(api: Api, first: int) -> None:
        number = first
        while not stop.is_set():
            version = known[0]
            message = {"body_base64": body_of(number, version), "key": f"{number}"}
            reply = api.call("POST", "/v1/topics/orders/messages", {"messages": [message]})
            if reply.status != 200:
                failed.append(reply)
                return
            sent[number] = version
            number += 2

    threads = [threading.Thread(target=produce, args=(api, at)) for at, api in enumerate(services)]
    for thread in threads:
        thread.start()
    try:
        for version in (0, 1, 2):
            if version:
                before = len(sent)
                assert put(services[version % 2], VERSIONS[version]).status == 200
                known[0] = version
                wait_for(sent, failed, before)
            wait_for(sent, failed, len(sent) + SENT_PER_VERSION)
        wrong = put(services[1], record("Order", ("id", "boolean")))
        assert (wrong.status, wrong.json["code"]) == (409, "incompatible_schema"), wrong
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed, failed

    popped = {value["id"]: value for api in services for value in popped_values(api)}
    assert popped == {number: value_of(number, version) for number, version in sent.items()}
    stored = {row["value"]["id"]: row["value"] for row in stored_rows(services[0])}
    assert len(stored) == len(sent)
    for number, version in sent.items():
        place = {"zip": None, "floor": None} | value_of(number, version).get("place", {})
        assert stored[number]["name"] == value_of(number, version).get("name")
        assert (stored[number]["place"] or {"zip": None, "floor": None}) == place


def wait_for(sent: dict[int, int], failed: list[Any], count: int) -> None:
    """Wait until so many messages are acknowledged."""
    until = time.monotonic() + 60
    while len(sent) < count and not failed:
        assert time.monotonic() < until, "sends go on"
        time.sleep(0.01)


def popped_values(api: Api) -> Iterator[dict[str, Any]]:
    """Yield the values that a group gets from the brokers of one process."""
    while True:
        answer = api.call("POST", "/v1/groups/g/topics/orders/pop?typed=true", {"max_messages": 500, "wait_ms": 2_000})
        assert answer.status == 200, answer
        if not answer.json["messages"]:
            return
        yield from (message["value"] for message in answer.json["messages"])


def stored_rows(api: Api) -> list[dict[str, Any]]:
    """Return the rows of all partitions, as another engine reads them."""
    rows: list[dict[str, Any]] = []
    for partition in api.call("GET", "/v1/topics/orders").json["partitions"]:
        rows += DeltaTable(partition["location"]).to_pyarrow_table(columns=["value", "invalid"]).to_pylist()
    assert all(row["invalid"] is None for row in rows)
    return rows
