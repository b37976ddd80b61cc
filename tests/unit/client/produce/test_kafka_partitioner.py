"""The SDK places keys of a topic with Kafka's partitioner as Kafka's clients do (SPEC KAFKA-12)."""

from __future__ import annotations

from collections import Counter

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import asdict

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.topic_view import TopicView, fetch_view
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.produce.repeatable_sends import TableSendState
from deltamq.mq.client.produce.slices import Slice, split_messages, split_rows
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.errors import Unknown
from deltamq.mq.partitioners import kafka_hash
from deltamq.mq.routing import new_route
from tests.unit.client.stub_service import StubService

VIEW = TopicView(new_route("t", 5, ["a", "b"]), strict=False, partitioner="kafka")
KEYS = ["", "é", "订单-42", "🚚", *(f"key-{number % 370}" for number in range(1_000))]


def homes(slices: list[Slice]) -> dict[int, str]:
    """The partition of each position."""
    return {int(at): str(one.partition) for one in slices for at in one.indexes}


def wanted(keys: list[str]) -> dict[int, str]:
    return {at: VIEW.partitions[kafka_hash(key) % 5] for at, key in enumerate(keys)}


@pytest.mark.parametrize("count", [1, 10, len(KEYS)])
def test_kafka_12_messages_go_by_kafkas_hash(count: int) -> None:
    messages = [Message(b"", key=key) for key in KEYS[:count]]
    assert homes(split_messages(messages, VIEW, 0)) == wanted(KEYS[:count])
    assert [VIEW.table[VIEW.slot_of(key)] for key in KEYS[:count]] == [kafka_hash(key) % 5 for key in KEYS[:count]]


def test_kafka_12_rows_go_by_kafkas_hash_and_rows_without_a_key_anywhere() -> None:
    rows = pa.record_batch({"key": pa.array(KEYS, pa.string()), "body": [b""] * len(KEYS)})
    assert homes(split_rows(rows, VIEW, 0)) == wanted(KEYS)
    mixed = pa.record_batch({"key": pa.array([None, *KEYS[1:]], pa.string()), "body": [b""] * len(KEYS)})
    found = homes(split_rows(mixed, VIEW, 7))
    assert found.pop(0) in VIEW.partitions
    assert found == {at: name for at, name in wanted(KEYS).items() if at}


def test_kafka_12_messages_without_a_key_are_drawn_evenly() -> None:
    drawn = Counter(VIEW.drawn)
    assert len(VIEW.drawn) == 1024 and drawn.keys() == set(range(5)) and max(drawn.values()) - min(drawn.values()) <= 1
    lp = TopicView(new_route("t", 5, ["a", "b"]), strict=False)
    assert lp.drawn is lp.table


def test_kafka_12_a_state_of_a_release_without_partitioners_goes_by_logical_partitions() -> None:
    state = TableSendState(
        topic="t",
        rows=1,
        body_bytes=1,
        rows_stored=0,
        route=VIEW.route.to_json(),
        strict=False,
        producer_ids=["p"] * 5,
        producer_seqs=[0] * 5,
        chunk=0,
        chunk_bytes=1,
        draw=1,
        partitioner="kafka",
    )
    assert TableSendState.from_json(state.to_json()) == state
    older = {name: value for name, value in asdict(state).items() if name != "partitioner"}
    assert TableSendState.from_json(msgspec.json.encode(older)).partitioner == "lp"


def _described(stub: StubService, **told: object) -> TopicView:
    """The view of a topic whose partitions have no logical ones, as the service describes it."""
    described = stub.describe(stub.create("orders", 3))
    for one in described["partitions"]:
        one["logical_partitions"] = []
    stub.describe = lambda _: {**described, "logical_partitions": 0, **told}  # type: ignore[method-assign]
    with Admin(stub.url) as admin:
        return run_now(fetch_view(admin.hosts, "orders", 5.0))


def test_kafka_12_the_description_of_a_topic_tells_its_partitioner(stub: StubService) -> None:
    view = _described(stub, partitioner="kafka")
    assert view.partitioner == "kafka" and view.slots.tolist() == [0, 1, 2]
    assert {view.slot_of(key) for key in KEYS} == {0, 1, 2} == set(view.drawn)


@pytest.mark.parametrize("told", [{}, {"partitioner": "lp"}, {"partitioner": "crc32"}])
def test_kafka_12_who_does_not_know_the_partitioner_sends_nothing_anywhere(
    stub: StubService, told: dict[str, object]
) -> None:
    with pytest.raises(Unknown) as caught:
        _described(stub, **told)
    assert caught.value.code == "answer_unreadable"
