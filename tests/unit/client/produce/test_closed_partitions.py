"""Sends while partitions may not be written to (SPEC ROUTE-9, SEND-2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from deltamq.mq.client.admin.topic_view import TopicView, fetch_view
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.errors import Unavailable
from deltamq.mq.routing import new_route
from deltamq.mq.wire.topics import PartitionInfo, TopicInfo
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import Fault

MakeProducer = Callable[..., Producer]


def test_send_02_the_service_chooses_another_partition_for_a_message_without_a_key(
    stub: StubService, producer: Producer
) -> None:
    stub.create("orders", 2)
    stub.faults.append(Fault.CLOSED)
    producer.send("orders", b"x")
    refused, stored = stub.posts
    assert refused.partition in stub.topics["orders"].route.partitions and stored.partition is None
    assert refused.producer_id == stored.producer_id and stored.seq == refused.seq + 1
    assert stub.bodies("orders") == [b"x"]


def test_send_02_a_strict_topic_sends_the_same_request_again(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2, strict=True)
    stub.faults.extend([Fault.CLOSED] * 3)
    producer.send("orders", b"x", key="k")
    assert len(stub.posts) == 4 and len({(post.seq, post.partition, post.body) for post in stub.posts}) == 1


def test_route_09_a_send_that_names_a_closed_partition_fails_and_says_that_nothing_is_stored(
    stub: StubService, make_producer: MakeProducer
) -> None:
    name = stub.create("orders", 2).route.partitions[1]
    producer = make_producer(retries=2)
    stub.faults.extend([Fault.CLOSED] * 3)
    with pytest.raises(Unavailable) as failed:
        producer.send("orders", b"x", partition=name)
    assert failed.value.code == "not_writable"
    assert {post.partition for post in stub.posts} == {name} and stub.bodies("orders") == []


def test_send_05_after_a_lost_answer_the_request_never_goes_elsewhere(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 2)
    stub.faults.extend([Fault.DROP_AFTER, Fault.CLOSED])
    producer.send("orders", b"x")
    assert len(stub.posts) == 3 and len({(post.seq, post.partition) for post in stub.posts}) == 1
    assert stub.bodies("orders") == [b"x"]


def test_send_02_messages_without_a_key_go_to_partitions_that_the_route_shows_as_open() -> None:
    view = TopicView(new_route("t", 4, ["a", "b"]), strict=False, unserved=frozenset({0, 2}))
    assert view.places.targets == (1, 3) and view.target_brokers == ("b", "b")


def test_rely_10_messages_without_a_key_pass_over_partitions_that_the_route_shows_as_stopped() -> None:
    class Described:
        async def call(self, method: str, path: str, *, timeout_s: float) -> SimpleNamespace:
            states = {"t@a": "serving", "t@b": "corrupt"}
            described = TopicInfo(
                topic="t",
                id="t-1",
                order_strategy="best_tried",
                retention_ms=1_000,
                message_type="normal",
                flush=None,
                created_time=datetime.fromtimestamp(0, UTC),
                routes_epoch=1,
                partitions=tuple(
                    PartitionInfo(
                        partition=name,
                        broker=name[2:],
                        logical_partitions=((at * 512, at * 512 + 512),),
                        location=f"memory/{name}",
                        state=state,
                    )
                    for at, (name, state) in enumerate(states.items())
                ),
            )
            return SimpleNamespace(body=msgspec.json.encode(described))

    view = run_now(fetch_view(cast(Any, Described()), "t", 1.0))
    assert view.partitions == ("t@a", "t@b") and view.places.targets == (0,)
