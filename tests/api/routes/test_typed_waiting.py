"""Values of a topic whose bodies do not name their schema, while they wait and its schema changes (SPEC TYPE-51)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.schema import MESSAGE_COLUMNS
from tests.api.queue_calls import Queue, queue_in
from tests.e2e.test_two_brokers import until
from tests.queue_engines import ENGINES, delay_job
from tests.typed import record

FIRST = record(("id", "long"), ("name", "string"))
#: Reads bodies of the first version wrongly: a field is in front.
SECOND = record(("note", ["null", "string"], {"default": None}), ("id", "long"), ("name", "string"))
SENT = {"id": 7, "name": "x"}
WAITS_MS = 60_000


@pytest.fixture(params=ENGINES)
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse") as made:
        made.engine = request.param
        yield made


def _version(queue: Queue, text: str) -> None:
    schema = {"format": "avro", "schema": text, "on_invalid": "quarantine"}
    reply = queue.api.call("PUT", "/v1/topics/orders", {"partitions": 1, "schema": schema})
    assert reply.status in (200, 201), reply


def _send(queue: Queue, **message: Any) -> None:
    reply = queue.api.send("orders", {"value": SENT, **message})
    assert reply.status == 200, reply


def _pop(queue: Queue, **asked: Any) -> dict[str, Any]:
    path = "/v1/groups/billing/topics/orders/pop?typed=true"
    reply = queue.api.call("POST", path, {"wait_ms": 20_000, **asked})
    assert reply.status == 200, reply
    (message,) = reply.json["messages"]
    return dict(message)


def _delay(queue: Queue) -> int:
    warehouse = Warehouse.open(str(queue.folder), clock=queue.clock)
    with contextlib.closing(warehouse):
        return int(delay_job(queue.engine, warehouse, queue.config).run(queue.now_ms)["rows"])


def _fetched(queue: Queue, **query: str) -> list[Any]:
    (partition,) = queue.api.partitions("orders")
    more = "".join(f"&{name}={value}" for name, value in query.items())
    reply = queue.api.call("GET", f"/v1/topics/orders/partitions/{partition}/messages?offset=0&typed=true{more}")
    assert reply.status == 200, reply
    return [message.get("value") for message in reply.json["messages"]]


def test_type_51_a_retry_a_delayed_message_and_a_dead_letter_come_as_they_were_sent(queue: Queue) -> None:
    _version(queue, FIRST)
    group = queue.group("billing", max_attempts=2)
    _send(queue, delay_ms=WAITS_MS, headers={"h": "delayed"})
    _send(queue, headers={"h": "sent"})
    message = _pop(queue)
    assert message["value"] == SENT
    group.nack([message["handle"]])
    _version(queue, SECOND)
    queue.advance(20_000)
    queue.revive()
    retried = _pop(queue)
    assert (retried["value"], retried["headers"], retried["delivery_attempt"]) == (SENT, {"h": "sent"}, 2)
    group.nack([retried["handle"]])
    queue.advance(20_000)
    queue.revive()
    (letter,) = queue.dead_letters("billing")
    assert list(letter) == list(MESSAGE_COLUMNS), "readers of messages see no more than before"
    path = "/v1/groups/billing/dead-letters/replay"
    assert queue.api.call("POST", path, {"to": "retry"}).json["replayed"] == 1
    again = _pop(queue)
    assert (again["value"], again["headers"]) == (SENT, {"h": "sent"})
    group.ack([again["handle"]])
    named = {letter["origin"]["partition"].replace("orders", "%DLQ%billing"): [0]}
    assert queue.api.call("POST", path, {"offsets": named}).json["replayed"] == 1
    back = _pop(queue)
    assert (back["value"], back["delivery_attempt"]) == (SENT, 1)
    group.ack([back["handle"]])
    queue.advance(WAITS_MS)
    assert _delay(queue) == 1
    late = _pop(queue)
    assert (late["value"], late["headers"]) == (SENT, {"h": "delayed"})
    assert queue.api.call("GET", "/v1/topics/orders/quarantine").json["messages"] == []


def test_type_51_messages_of_an_older_version_are_fetched_and_popped_as_they_were_stored(queue: Queue) -> None:
    _version(queue, FIRST)
    queue.group("billing")
    _send(queue)
    _version(queue, SECOND)
    reply = queue.api.send("orders", {"value": {**SENT, "note": "n"}}, {"body": "?"})
    assert reply.status == 200, reply
    wanted = [SENT, {**SENT, "note": "n"}]
    assert _fetched(queue) == _fetched(queue, filter="id%20IS%20NULL") == wanted
    assert [_pop(queue, max_messages=1)["value"] for _ in wanted] == wanted
    queue.restart()
    assert _fetched(queue) == wanted


@pytest.mark.parametrize("to", ["retry", "dead"])
def test_type_51_messages_in_order_keep_their_schema_too(queue: Queue, to: str) -> None:
    _version(queue, FIRST)
    group = queue.group("billing", order=True, max_attempts=1 if to == "dead" else 3)
    _send(queue)
    message = _pop(queue)
    _version(queue, SECOND)
    if to == "dead":
        group.dead([message["handle"]])
        queue.advance(20_000)
        queue.revive()
        replayed = queue.api.call("POST", "/v1/groups/billing/dead-letters/replay", {"to": "retry"}).json
        assert replayed["replayed"] == 1
    else:
        group.nack([message["handle"]])
        queue.advance(20_000)
    again = _pop(queue)
    assert again.get("value") == SENT, again


def test_type_51_a_value_of_a_field_whose_type_changed_is_retried_as_it_was_stored(queue: Queue) -> None:
    """A topic of columns keeps only values: what is retried has the names of its columns, not of a version's fields."""
    api = queue.api
    for number, kind in enumerate(("STRING", "BIGINT"), 1):
        schema = {"format": "columns", "schema": f"id BIGINT, amount {kind}"}
        assert api.call("PUT", "/v1/topics/orders", {"partitions": 1, "schema": schema}).status in (200, 201)
        level = {"compatibility": "NONE"}
        assert api.call("PUT", "/schemas/config/orders-value", level).status == 200
        value = {"id": number, "amount": "a" if number == 1 else 2}
        assert api.send("orders", {"value": value}, {"value": value, "delay_ms": WAITS_MS}).status == 200
    group = queue.group("billing", max_attempts=5)
    wanted = [{"id": 1, "amount": "a"}, {"id": 2, "amount_v2": 2}]
    for _ in range(3):
        reply = api.call(
            "POST", "/v1/groups/billing/topics/orders/pop?typed=true", {"max_messages": 10, "wait_ms": 20_000}
        )
        messages = sorted(reply.json["messages"], key=lambda message: message["message_id"])
        assert sorted((message.get("value") or {} for message in messages), key=str) == sorted(wanted, key=str)
        group.nack([message["handle"] for message in messages])
        queue.advance(WAITS_MS)
        queue.revive()
    assert _delay(queue) == 2
    stored = until(lambda: len(found := _fetched(queue)) == 4 and found)
    assert sorted(map(str, stored)) == sorted(map(str, wanted * 2))


def test_type_51_a_version_that_was_deleted_softly_still_reads_what_it_wrote(queue: Queue) -> None:
    _version(queue, FIRST)
    group = queue.group("billing")
    _send(queue)
    message = _pop(queue)
    _version(queue, SECOND)
    assert queue.api.call("DELETE", "/schemas/subjects/orders-value/versions/1").status == 200
    group.nack([message["handle"]])
    queue.advance(20_000)
    queue.revive()
    assert _pop(queue).get("value") == SENT
