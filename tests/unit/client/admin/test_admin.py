"""Topics and the cluster as typed values."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.http.calls import decoded
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.errors import Conflict, NotFound, Refused, Unavailable, Unknown
from deltamq.mq.wire.topics import TopicInfo
from tests.unit.client.on_loop import InShell
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import Fault


@pytest.fixture
def admin(stub: StubService, in_shell: InShell) -> Iterator[Admin]:
    with in_shell(Admin, stub.url, patience=Patience(first_wait_ms=1, timeout_s=5)) as admin:
        yield admin


def test_a_topic_is_created_shown_listed_and_deleted(admin: Admin) -> None:
    created = admin.create_topic("orders", partitions=4, order_strategy="strict")
    assert (created.topic, created.order_strategy, len(created.partitions)) == ("orders", "strict", 4)
    assert created.partitions[0].logical_partitions == ((0, 256),)
    assert admin.get_topic("orders") == created
    assert admin.put_topic("orders") == (created, False)
    assert admin.list_topics() == ["orders"]
    admin.delete_topic("orders")
    assert admin.list_topics() == []
    with pytest.raises(NotFound):
        admin.delete_topic("orders")


def test_a_shrinking_topic_is_a_conflict(admin: Admin) -> None:
    admin.create_topic("orders", partitions=4)
    with pytest.raises(Conflict) as caught:
        admin.create_topic("orders", partitions=2)
    assert caught.value.code == "partitions_cannot_shrink"


def test_a_deletion_whose_answer_was_lost_is_done(stub: StubService, admin: Admin) -> None:
    stub.create("orders", 1)
    stub.faults.append(Fault.DROP_AFTER)
    admin.delete_topic("orders")
    assert stub.topics == {}


def test_a_call_whose_answer_ends_at_any_byte_is_repeated(stub: StubService) -> None:
    topic = stub.create("orders", 2)
    with Admin(stub.url, patience=Patience(retries=1_000, first_wait_ms=1, wait_ms_max=1)) as admin:
        stub.cuts.extend(range(0, 700, 3))
        assert len(admin.get_topic("orders").partitions) == len(topic.route.partitions)
    assert not stub.cuts


def test_names_are_checked_before_anything_is_sent(stub: StubService, admin: Admin) -> None:
    for call in (admin.create_topic, admin.get_topic, admin.delete_topic):
        with pytest.raises(Refused):
            call("a/b")
    with pytest.raises(Refused):
        admin.create_topic("%RETRY%x")
    assert stub.gets == []


def test_offsets_by_time(stub: StubService, admin: Admin, producer: Producer) -> None:
    stub.create("orders", 2)
    producer.send("orders", b"x", partition="orders@broker-a")
    hour = timedelta(hours=1)
    now = datetime.now(UTC)
    assert admin.offsets_at("orders", now - hour) == {"orders@broker-a": 0, "orders@broker-b": 0}
    assert admin.offsets_at("orders", now + hour) == {"orders@broker-a": 1, "orders@broker-b": 0}
    with pytest.raises(Refused):
        admin.offsets_at("orders", datetime(2026, 1, 1))


def test_the_cluster_and_its_readiness(stub: StubService, admin: Admin) -> None:
    cluster = admin.cluster()
    assert cluster.warehouse == "/w"
    assert [broker.broker for broker in cluster.brokers] == ["broker-a", "broker-b"]
    assert admin.unready() is None
    stub.ready = False
    assert admin.unready() == "stub: unavailable"


def test_a_service_that_is_not_there_is_told_after_the_retries() -> None:
    with StubService() as stub:
        url = stub.url
    with Admin(url, patience=Patience(retries=2, first_wait_ms=1)) as admin:
        with pytest.raises(Unavailable) as caught:
            admin.list_topics()
        assert caught.value.code == "connect_failed"
        with pytest.raises(Unavailable):
            admin.unready()


def test_an_answer_that_is_no_topic_is_an_error_of_ours() -> None:
    with pytest.raises(Unknown) as caught:
        decoded(b'{"topic": 1}', TopicInfo)
    assert caught.value.code == "answer_unreadable"


def test_a_token_is_sent_and_never_shown(stub: StubService) -> None:
    with Admin(stub.url, token="secret-token") as admin:
        admin.list_topics()
        assert stub.tokens[-1] == "Bearer secret-token"
        assert "secret" not in repr(vars(admin))
