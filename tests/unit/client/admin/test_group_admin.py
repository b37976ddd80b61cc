"""Groups, offsets, dead letters and cancelling over REST."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.errors import Conflict, NotFound, Refused, Unprocessable
from tests.unit.client.on_loop import InShell
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

QUICK = Patience(first_wait_ms=1, wait_ms_max=5, timeout_s=5, request_timeout_s=2)


@pytest.fixture
def admin(stub: StubService, in_shell: InShell) -> Iterator[Admin]:
    with in_shell(Admin, stub.url, patience=QUICK) as admin:
        yield admin


@pytest.fixture
def client(stub: StubService, in_shell: InShell) -> Iterator[PopClient]:
    with in_shell(PopClient, stub.url, "billing", patience=QUICK) as client:
        yield client


def test_a_group_is_created_changed_shown_and_removed(admin: Admin) -> None:
    group = admin.create_group("billing", max_attempts=3, retry_policy={"fixed_ms": 10}, order="key")
    assert (group.group, group.max_attempts, group.retry_policy, group.order) == ("billing", 3, {"fixed_ms": 10}, "key")
    assert group.created_time.tzinfo is not None
    again, created = admin.put_group("billing", invisible_ms=20_000)
    assert (again.max_attempts, again.invisible_ms, again.epoch, created) == (3, 20_000, group.epoch, False)
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert admin.create_group("audit", consume_from=moment).consume_from == "2026-01-02T00:00:00.000Z"
    assert admin.list_groups() == ["audit", "billing"]
    admin.delete_group("billing")
    assert admin.list_groups() == ["audit"]
    with pytest.raises(NotFound):
        admin.get_group("billing")


def test_a_lost_answer_to_a_deletion_is_no_failure(stub: StubService, admin: Admin) -> None:
    admin.create_group("billing")
    stub.queue.faults["DELETE"].append(QueueFault.DROP_AFTER)
    admin.delete_group("billing")
    with pytest.raises(NotFound):
        admin.delete_group("billing")


def test_what_a_group_holds_is_shown(stub: StubService, admin: Admin, client: PopClient) -> None:
    stub.queue.fill("orders", 10)
    batch = client.pop("orders", 4)
    client.ack([message.handle for message in batch.messages[:3]])
    info = admin.get_group("billing")
    assert info.lag == sum(topic.lag for topic in info.topics) > 0
    (topic,) = info.topics
    normal, retry = topic.partitions
    assert (normal.partition, normal.end_offset, normal.in_flight) == ("orders@memory", 10, 1)
    assert retry.retry
    assert retry.lag == 0


def test_pop_18_offsets_are_read_committed_and_reset(stub: StubService, admin: Admin, client: PopClient) -> None:
    stub.queue.fill("orders", 10)
    batch = client.pop("orders", 4)
    assert admin.commit_offsets("billing", "orders", {"orders@memory": 2}, client_id="me") == {"orders@memory": 2}
    assert admin.reset_offsets("billing", "orders", {"orders@memory": 7}) == {"orders@memory": 7}
    assert admin.group_offsets("billing", "orders")["orders@memory"] == 7
    assert {one.code for one in client.ack([message.handle for message in batch.messages])} == {"handle_expired"}
    assert admin.reset_offsets("billing", "orders", "first", keep_retries=False)["orders@memory"] == 0
    assert admin.reset_offsets("billing", "orders", datetime.now(UTC) + timedelta(days=1))["orders@memory"] == 10
    kept = [call.request["retries"] for call in stub.queue.calls_of("reset")]
    assert kept == ["keep", "drop", "keep"]
    with pytest.raises(Unprocessable):
        admin.reset_offsets("billing", "orders", datetime(2026, 1, 1))
    with pytest.raises(NotFound):
        admin.reset_offsets("billing", "nowhere", "first")


def test_retry_03_dead_letters_are_listed_page_by_page_and_sent_back(
    stub: StubService, admin: Admin, client: PopClient
) -> None:
    stub.queue.fill("orders", 3)
    handles = [message.handle for message in client.pop("orders").messages]
    client.dead(handles, "no such customer")
    stub.queue.wait_for(lambda: len(stub.queue.look(lambda twin: twin.dead_letters("billing"))) == 3)
    page = admin.dead_letters("billing", limit=2)
    assert ([letter.payload for letter in page.messages], page.next_offset) == ([b"0", b"1"], 2)
    last = admin.dead_letters("billing", limit=2, offset=2)
    assert ([letter.reason for letter in last.messages], last.next_offset) == (["no such customer"], None)
    (letter,) = last.messages
    assert letter.origin is not None
    assert (letter.topic, letter.origin.offset, letter.attempts) == ("orders", 2, 1)
    done = admin.replay_dead_letters("billing", offsets={letter.partition: [letter.offset, 99]})
    assert (done.replayed, done.failed_total, done.failed[0].code) == (1, 1, "offset_out_of_range")
    assert [message.body for message in client.pop("orders").messages] == [b"2"]
    rest = admin.replay_dead_letters("billing", to="retry")
    assert (rest.replayed, rest.duplicates) == (2, 1)


def test_retry_08_dead_letters_have_states_are_counted_and_deleted(
    stub: StubService, admin: Admin, client: PopClient
) -> None:
    stub.queue.fill("orders", 3)
    client.dead([message.handle for message in client.pop("orders").messages], "no such customer")
    stub.queue.wait_for(lambda: len(stub.queue.look(lambda twin: twin.dead_letters("billing"))) == 3)
    place = admin.dead_letters("billing").messages[0].partition
    assert admin.replay_dead_letters("billing", offsets={place: [1]}).replayed == 1
    assert admin.delete_dead_letters("billing", offsets={place: [2]}).deleted == 1
    new, sent = admin.dead_letters("billing").messages
    assert (new.state, new.sent_back_time, sent.state) == ("new", None, "sent_back")
    assert sent.sent_back_time is not None and sent.sent_back_time.tzinfo is not None
    (gone,) = admin.dead_letters("billing", state="deleted", reason="no such customer").messages
    assert (gone.offset, gone.state) == (2, "deleted")
    counts = admin.count_dead_letters("billing", by="reason")
    assert (counts.new, counts.sent_back, counts.deleted) == (1, 1, 1) and counts.counts[0].reason == "no such customer"
    page = admin.dead_letters("billing", limit=1)
    assert [one.offset for one in admin.dead_letters("billing", cursor=page.cursor).messages] == [1]
    assert admin.delete_dead_letters("billing", everything=True).deleted == 2
    with pytest.raises(Unprocessable):
        admin.dead_letters("billing", since=datetime(2026, 1, 2))


# Delays --------------------------------------------------------------------------------------------------------


def test_retry_04_a_delayed_message_is_delivered_later(
    stub: StubService, producer: Producer, client: PopClient
) -> None:
    stub.create("orders", 1)
    producer.send("orders", b"later", delay_ms=60_000)
    producer.send_soon("orders", b"at a time", deliver_time=datetime.now(UTC) + timedelta(hours=1)).result()
    producer.send_oneway("orders", b"now")
    assert producer.flush()
    assert [message.body for message in client.pop("orders").messages] == [b"now"]
    stub.queue.let_pass(60_000)
    assert [message.body for message in client.pop("orders").messages] == [b"later"]
    assert client.pop("orders").messages == []


def test_retry_04_a_delayed_message_is_cancelled_until_it_is_due(
    stub: StubService, producer: Producer, admin: Admin, client: PopClient
) -> None:
    stub.create("orders", 1)
    producer.send("orders", b"later", delay_ms=60_000, message_id="a/b 1")
    producer.send("orders", b"soon", delay_ms=1, message_id="m-2")
    admin.cancel_message("orders", "a/b 1")
    assert [message.body for message in client.pop("orders", wait_ms=5_000).messages] == [b"soon"]
    with pytest.raises(Conflict) as caught:
        admin.cancel_message("orders", "m-2")
    assert caught.value.code == "already_due"
    with pytest.raises(NotFound):
        admin.cancel_message("orders", "m-3")


def test_a_wrong_delay_never_leaves_the_process(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    later = datetime.now(UTC) + timedelta(hours=1)
    for wrong in (
        {"delay_ms": 1, "deliver_time": later},
        {"delay_ms": -1},
        {"delay_ms": 41 * 24 * 3600 * 1000},
        {"deliver_time": datetime(2026, 1, 1)},
    ):
        with pytest.raises(Refused):
            producer.send("orders", b"x", **wrong)
    assert stub.posts == []
