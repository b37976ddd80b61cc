"""A registry elsewhere: another service's, and ones that answer with anything (SPEC TYPE-49)."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.schemas import outside
from deltamq.api.schemas.outside import OutsideRegistry
from deltamq.mq.schemas.changes import OWN_IDS
from deltamq.mq.schemas.registry import RegistryState
from deltamq.tables.config import ConfigInvalid
from deltamq.tables.config_sections import Secret
from tests.api.running import Api, Reply, config_for, running, until

MORE = {"name": "more", "type": ["null", "string"], "default": None}
TYPED = {"format": "avro", "wire": "confluent"}


def record(*fields: Any, name: str = "Order") -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}, *fields]})


def register(api: Api, subject: str, schema: str, **more: Any) -> Any:
    kind = {} if "record" in schema else {"schemaType": "JSON"}
    reply = api.call("POST", f"/schemas/subjects/{subject}/versions", {"schema": schema, **kind, **more})
    return reply.json["id"] if reply.status == 200 else reply.json["error_code"]


def send(api: Api, topic: str, id_: int, body: bytes) -> Reply:
    framed = base64.b64encode(b"\0" + id_.to_bytes(4) + body).decode()
    return api.send(topic, {"body_base64": framed, "key": "a"})


def sent(api: Api, topic: str, id_: int, body: bytes) -> None:
    """Send, as clients do: what is refused for now is repeated."""
    replies: list[Reply] = []

    def is_done() -> bool:
        replies.append(send(api, topic, id_, body))
        return replies[-1].status != 503

    until(is_done)
    assert replies[-1].status == 200, replies[-1]
    assert all(one.json["code"] == "schema_pending" for one in replies[:-1]), replies


def values(api: Api, topic: str) -> list[Any]:
    [partition] = api.partitions(topic)
    reply = api.call("GET", f"/v1/topics/{topic}/partitions/{partition}/messages?offset=0&typed=true")
    return [one["value"] for one in reply.json["messages"]]


def json_schema(*names: str) -> str:
    properties = {name: {"type": "integer"} for name in names}
    return json.dumps({"type": "object", "properties": properties, "additionalProperties": False})


class Elsewhere:
    """A service whose registry another one follows; it may be stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.port = 0
        self.start()

    def start(self) -> None:
        self.api = self._stack.enter_context(running(config_for(self._folder, port=self.port)))
        self.port = self.api.port

    def stop(self) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/schemas"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path / "elsewhere")
    yield made
    made.stop()


def test_type_49_schemas_of_a_registry_elsewhere_are_known_here_also_when_it_is_gone(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    for n in range(3):
        register(elsewhere.api, f"other-{n}", record(name=f"Other{n}"))
    first = register(elsewhere.api, "orders-value", record())
    config = config_for(tmp_path / "here", schemas_url=elsewhere.url)
    with running(config) as here:
        here.put_topic("orders", partitions=1, schema=TYPED)
        assert here.call("GET", f"/schemas/schemas/ids/{first}").json["schema"] == record().replace(" ", "")
        sent(here, "orders", first, b"\x02")
        second = register(elsewhere.api, "orders-value", record(MORE))
        assert second > first
        sent(here, "orders", second, b"\x04\x02\x02x")
        assert values(here, "orders") == [{"id": 1}, {"id": 2, "more": "x"}]
        # One that the registry has, but not for this topic, and one that nobody has.
        for id_ in (1, 99):
            until(lambda id_=id_: send(here, "orders", id_, b"\x02").status != 503)
            refused = send(here, "orders", id_, b"\x02")
            assert (refused.status, refused.json["invalid"][0]["code"]) == (422, "unknown_schema"), refused
        elsewhere.stop()
        until(lambda: send(here, "orders", 77, b"\x02").json["code"] == "registry_unavailable")
        sent(here, "orders", second, b"\x06\x00")
        refused = here.call("PUT", "/v1/topics/payments", {"schema": TYPED})
        assert (refused.status, refused.json["code"]) == (503, "registry_unavailable"), refused
    with running(config) as here:
        sent(here, "orders", first, b"\x08")
        assert [one["id"] for one in values(here, "orders")] == [1, 2, 3, 4]
        elsewhere.start()
        third = register(elsewhere.api, "orders-value", record(MORE, {**MORE, "name": "again"}))
        sent(here, "orders", third, b"\x0a\x00\x00")


def test_type_49_a_version_is_found_when_messages_do_not_name_it(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_LOOK_S", 0.1)
    register(elsewhere.api, "orders-value", json_schema("a"))
    with running(config_for(tmp_path / "here", schemas_url=elsewhere.url)) as here:
        here.put_topic("orders", partitions=1, schema={"format": "json", "wire": "none"})
        assert here.send("orders", '{"a": 1, "b": 2}').status == 422
        assert register(elsewhere.api, "orders-value", json_schema("a", "b")) < OWN_IDS
        until(lambda: here.send("orders", '{"a": 1, "b": 2}').status == 200)
        elsewhere.stop()
        assert here.send("orders", '{"a": 3}').status == 200
        assert values(here, "orders") == [{"a": 1, "b": 2}, {"a": 3}]
        elsewhere.start()
        register(elsewhere.api, "orders-value", json_schema("a", "b", "c"))
        until(lambda: len(here.call("GET", "/schemas/subjects/orders-value/versions").json) == 3)


def test_type_49_ids_of_here_and_there_do_not_meet_and_schemas_are_registered_there(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    used = register(elsewhere.api, "customer", record(name="Customer"))
    whole = record({"name": "who", "type": "Customer"})
    uses = [{"name": "Customer", "subject": "customer", "version": 1}]
    id_ = register(elsewhere.api, "orders-value", whole, references=uses)
    with running(config_for(tmp_path / "here", schemas_url=elsewhere.url)) as here:
        here.put_topic("columns", partitions=1, schema={"format": "columns", "schema": "id BIGINT"})
        ids = here.call("GET", "/schemas/subjects/columns-value/versions/1").json["id"]
        assert ids == OWN_IDS > used
        here.put_topic("orders", partitions=1, schema=TYPED)
        sent(here, "orders", id_, b"\x02\x04")
        assert values(here, "orders") == [{"id": 1, "who": {"id": 2}}]
        assert register(here, "orders-value", record()) == 42205
        refused = here.call("PUT", "/v1/topics/orders", {"schema": {**TYPED, "schema": record()}})
        assert refused.json["code"] == "operation_not_permitted" and elsewhere.url in refused.json["detail"]
        # A version for which the topic can have no columns: its messages do not fit, the others go on.
        elsewhere.api.call("PUT", "/schemas/config/orders-value", {"compatibility": "NONE"})
        odd = register(elsewhere.api, "orders-value", record({"name": "ID", "type": "int"}))
        until(lambda: send(here, "orders", odd, b"\x02\x02").status == 422)
        sent(here, "orders", id_, b"\x06\x08")


@contextmanager
def answering(status: int, body: bytes, *, asked: list[str] | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.headers.get("authorization", ""))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, b""), (200, b"<html>"), (200, b'{"a": 1}'), (302, b""), (200, b"[" * 9_000_000), (200, b'["x"]')],
)
def test_type_49_a_registry_that_answers_with_anything_is_said_to(status: int, body: bytes, tmp_path: Path) -> None:
    with answering(status, body) as url, running(config_for(tmp_path / "here", schemas_url=url)) as here:
        refused = here.call("PUT", "/v1/topics/orders", {"schema": TYPED})
        assert (refused.status, refused.json["code"]) == (503, "registry_unavailable"), refused
        assert "answers with" in refused.json["detail"]


def test_type_49_it_is_asked_with_its_password_and_not_over_http_elsewhere(tmp_path: Path) -> None:
    asked: list[str] = []
    with answering(404, b"{}", asked=asked) as url:
        config = config_for(tmp_path / "here", schemas_url=url, schemas_user=Secret("me:word"))
        with running(config) as here:
            refused = here.call("PUT", "/v1/topics/orders", {"schema": TYPED})
            assert refused.json["code"] == "invalid_schema", "the registry has no such subject"
    assert asked == ["Basic " + base64.b64encode(b"me:word").decode()]

    async def made(url: str, user: str = "", ca: str = "") -> None:
        async def follow(_: Any) -> None:
            raise AssertionError

        OutsideRegistry(url, user, ca, state=RegistryState, follow=follow, without_ids=list)

    for url, user, ca in (
        ("ftp://a/", "", ""),
        ("http://", "", ""),
        ("http://me:word@a/", "", ""),
        ("http://registry.example/", "me:word", ""),
        ("https://a/", "", str(tmp_path / "none.pem")),
    ):
        with pytest.raises(ConfigInvalid, match=r"service\.schemas_"):
            asyncio.run(made(url, user, ca))
