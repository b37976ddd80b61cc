"""Messages of a version that a reader, or a process, did not know when it was asked (SPEC TYPE-52)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.schemas.registry import Version
from deltamq.mq.schemas.setting import SchemaSetting, Wire
from deltamq.tables.typed.codec import codec_of
from tests.api.running import Api, config_for, running
from tests.e2e.test_two_brokers import until
from tests.typed import record

NAME, PLACE = ("name", ["null", "string"], {"default": None}), ("place", ["null", "string"], {"default": None})
FIRST, SECOND = record(("id", "long"), NAME), record(("id", "long"), NAME, PLACE)
OLD, NEW = {"id": 1, "name": "a"}, {"id": 2, "name": "b", "place": "c"}
WIRES: list[Wire] = ["none", "confluent"]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(config_for(tmp_path)) as started:
        yield started


def put(api: Api, text: str, wire: Wire, on_invalid: str = "quarantine") -> int:
    schema = {"format": "avro", "wire": wire, "schema": text, "on_invalid": on_invalid}
    reply = api.call("PUT", "/v1/topics/orders", {"partitions": 2, "schema": schema})
    assert reply.status in (200, 201), reply
    return int(reply.json["schema"]["schema_id"])


def partition_of(api: Api, broker: str = "broker-a") -> str:
    found: list[str] = [one["partition"] for one in api.call("GET", "/v1/topics/orders").json["partitions"]]
    return next(name for name in found if broker in name)


def send(api: Api, value: dict[str, Any], partition: str) -> None:
    assert api.send("orders", {"value": value, "partition": partition}).status == 200


class Waiting(threading.Thread):
    """A call that waits for messages; `result` is what it gave."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self.start()

    def run(self) -> None:
        self.found = self._call()

    def result(self) -> Any:
        self.join()
        return self.found


def wait_for_a_reader(api: Api) -> None:
    """Wait until a reader of the service waits for an append."""
    until(lambda: any(partition.has_waiters for partition in api.service.partitions._known.values()))


@pytest.mark.parametrize("wire", WIRES)
def test_type_52_a_fetch_that_waits_has_the_values_of_a_version_that_came_meanwhile(api: Api, wire: Wire) -> None:
    put(api, FIRST, wire)
    name = partition_of(api)
    fetch = Waiting(lambda: api.fetch("orders", name, "?offset=0&typed=true&wait_ms=20000"))
    wait_for_a_reader(api)
    put(api, SECOND, wire)
    send(api, NEW, name)
    assert [message["value"] for message in fetch.result().json["messages"]] == [NEW]


@pytest.mark.parametrize("wire", WIRES)
def test_type_52_a_pop_that_waits_has_the_values_of_a_version_that_came_meanwhile(api: Api, wire: Wire) -> None:
    put(api, FIRST, wire)
    asked = {"wait_ms": 20_000, "max_messages": 1}
    pop = Waiting(lambda: api.call("POST", "/v1/groups/g/topics/orders/pop?typed=true", asked))
    wait_for_a_reader(api)
    put(api, SECOND, wire)
    send(api, NEW, partition_of(api))
    assert [message["value"] for message in pop.result().json["messages"]] == [NEW]


@pytest.mark.parametrize("wire", WIRES)
def test_type_52_a_stream_goes_on_with_the_values_of_a_version_that_comes(api: Api, wire: Wire) -> None:
    put(api, FIRST, wire)
    name = partition_of(api)
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    with contextlib.closing(connection):
        path = api.messages_path("orders", name) + "?offset=0&typed=true"
        connection.request("GET", path, headers={"Accept": "text/event-stream"})
        stream = connection.getresponse()
        for text, value in ((None, OLD), (SECOND, NEW)):
            if text is not None:
                put(api, text, wire)
            send(api, value, name)
            line = next(line for line in iter(stream.readline, b"") if line.startswith(b"data:"))
            assert json.loads(line.removeprefix(b"data:"))["value"] == value


@pytest.fixture
def untold(tmp_path: Path) -> Iterator[tuple[Api, Api]]:
    """Two services, of which the first cannot tell the second what it has changed, which does not look by itself."""

    async def nobody(*_: object) -> None:
        return None

    with ExitStack() as both:
        first = both.enter_context(running(config_for(tmp_path, brokers=("broker-a",))))
        second = both.enter_context(
            running(config_for(tmp_path, brokers=("broker-b",), lease_ms=600_000, lease_renew_ms=200_000))
        )
        put(first, FIRST, "confluent")
        assert second.call("GET", "/v1/topics/orders").status == 200
        first.service.owners.tell = nobody  # type: ignore[method-assign]
        ticker = second.service.hosting._ticker
        assert ticker is not None
        ticker.get_loop().call_soon_threadsafe(ticker.cancel)
        until(ticker.done)
        yield first, second


@pytest.mark.parametrize("wire", WIRES)
def test_type_52_a_process_that_was_not_told_reads_the_values_of_a_version(untold: tuple[Api, Api], wire: Wire) -> None:
    first, second = untold
    put(first, FIRST, wire)
    name = partition_of(first)
    send(first, OLD, name)
    assert second.fetch("orders", name, "?offset=0&typed=true").json["messages"][0]["value"] == OLD
    put(first, SECOND, wire)
    send(first, NEW, name)
    assert second.fetch("orders", name, "?offset=1&typed=true").json["messages"][0]["value"] == NEW
    assert len(second.service.meta.now.schemas.versions("orders-value")) == (2 if wire == "confluent" else 1)


@pytest.mark.parametrize("on_invalid", ["reject", "quarantine", "rescue"])
def test_type_52_a_process_that_was_not_told_takes_messages_of_a_version(
    untold: tuple[Api, Api], on_invalid: str
) -> None:
    first, second = untold
    put(first, FIRST, "confluent", on_invalid)
    until(lambda: second.call("GET", "/readyz").status == 200)
    id_ = put(first, SECOND, "confluent", on_invalid)
    new = Version(subject="orders-value", version=2, id=id_, schema_type="AVRO", schema=SECOND)
    setting = SchemaSetting(format="avro", subject=new.subject, wire="confluent")
    codec = codec_of(setting, [new], lambda _: new, lambda _: [])
    body = base64.b64encode(codec.encode([NEW])[0].as_py()).decode()
    sent = {"body_base64": body, "partition": partition_of(first, "broker-b")}
    refused = second.send("orders", sent)
    assert (refused.status, refused.json["code"]) == (503, "schema_pending"), refused
    until(lambda: second.send("orders", sent).status == 200)
    fetched = second.fetch("orders", sent["partition"], "?offset=0&typed=true").json["messages"]
    assert [(message["value"], message.get("rescued")) for message in fetched] == [(NEW, None)]
    assert first.call("GET", "/v1/topics/orders/quarantine").json["messages"] == []
