"""The calls of POP one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.pop.client import PopClient, parse_batch
from deltamq.mq.errors import Conflict, NotFound, Refused, Unavailable, Unknown, Unprocessable
from tests.unit.client.on_loop import InShell
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

QUICK = Patience(first_wait_ms=1, wait_ms_max=5, timeout_s=5, request_timeout_s=2)


@pytest.fixture
def client(stub: StubService, in_shell: InShell) -> Iterator[PopClient]:
    with in_shell(PopClient, stub.url, "billing", client_id="me", patience=QUICK) as client:
        yield client


def test_pop_acknowledge_pop(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 5)
    batch = client.pop("orders", 3, invisible_ms=5_000)
    assert ([message.text for message in batch.messages], batch.invisible_ms) == (["0", "1", "2"], 5_000)
    assert client.ack([message.handle for message in batch.messages[:2]]) == []
    rest = client.pop("orders", ack=[batch.messages[2].handle])
    assert [message.text for message in rest.messages] == ["3", "4"]
    client.ack([message.handle for message in rest.messages])
    assert stub.queue.is_done("billing", "orders")
    assert {call.request["client_id"] for call in stub.queue.calls_of("pop")} == {"me"}


def test_a_body_that_is_no_text_arrives_as_it_is(stub: StubService, client: PopClient) -> None:
    stub.queue.look(lambda twin: (twin.create_topic("orders"), twin.send("orders", b"\xff\x00")))
    (message,) = client.pop("orders").messages
    assert message.body == b"\xff\x00"


def test_a_pop_as_arrow_tells_failed_acknowledgements_too(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 5)
    first = client.pop_arrow("orders", 2)
    handles = first.rows.column("handle").to_pylist()
    client.nack(handles[:1], delay_ms=60_000)
    second = client.pop_arrow("orders", 10, ack=[*handles, "1garbled"])
    assert second.rows.column("body").to_pylist() == [b"2", b"3", b"4"]
    assert {(one.handle, one.code) for one in second.failed_acks} == {
        (handles[0], "handle_expired"),
        ("1garbled", "handle_invalid"),
    }


def test_pop_08_each_handle_is_answered_by_itself(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 2)
    first, second = client.pop("orders").messages
    failed = client.ack([first.handle, "nonsense", second.handle, first.handle])
    assert [(one.handle, one.code) for one in failed] == [("nonsense", "handle_invalid")]
    with PopClient(stub.url, "audit", patience=QUICK) as other:
        other.pop("orders")
        assert [one.code for one in other.ack([first.handle])] == ["handle_invalid"]


def test_pop_09_a_changed_invisible_time_gives_a_new_handle(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 1)
    (message,) = client.pop("orders").messages
    handle = client.change_invisible(message.handle, 30_000)
    assert handle != message.handle
    assert [one.code for one in client.ack([message.handle])] == ["handle_expired"]
    assert client.ack([handle]) == []
    with pytest.raises(Refused) as caught:
        client.change_invisible("nonsense", 30_000)
    assert caught.value.code == "handle_invalid"
    with pytest.raises(Conflict) as gone:
        client.change_invisible(handle, 30_000)
    assert gone.value.code == "handle_expired"


def test_a_returned_message_is_there_at_once(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 1)
    (message,) = client.pop("orders").messages
    client.change_invisible(message.handle, 0)
    (again,) = client.pop("orders", wait_ms=5_000).messages
    assert (again.body, again.delivery_attempt) == (b"0", 2)


def test_a_new_handle_that_is_lost_is_an_unknown_outcome(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 1)
    (message,) = client.pop("orders").messages
    stub.queue.faults["invisible"].append(QueueFault.DROP_AFTER)
    with pytest.raises(Unknown, match="is delivered again"):
        client.change_invisible(message.handle, 30_000)


def test_calls_are_repeated_while_the_service_is_away(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 2)
    stub.queue.faults["pop"].extend([QueueFault.UNAVAILABLE, QueueFault.DROP_BEFORE])
    messages = client.pop("orders").messages
    assert len(messages) == 2
    stub.queue.faults["ack"].extend([QueueFault.DROP_AFTER, QueueFault.UNAVAILABLE])
    assert client.ack([message.handle for message in messages]) == []
    stub.queue.faults["pop"].extend([QueueFault.UNAVAILABLE] * 100)
    with pytest.raises(Unavailable):
        client.pop("orders")


def test_many_handles_go_in_several_calls(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 3_000)
    handles: list[str] = []
    while messages := client.pop("orders", 1_024).messages:
        handles += [message.handle for message in messages]
    assert client.ack(handles) == []
    assert [len(call.request["handles"]) for call in stub.queue.calls_of("ack")] == [1_024, 1_024, 952]
    assert client.ack([]) == []
    assert stub.queue.is_done("billing", "orders")


def test_what_cannot_be_right_never_leaves_the_process(stub: StubService, client: PopClient) -> None:
    for wrong in ({"max_messages": 0}, {"max_messages": 1_025}, {"wait_ms": -1}, {"wait_ms": 20_001}):
        with pytest.raises(Refused):
            client.pop("orders", **wrong)
    with pytest.raises(Refused):
        client.pop("or/ders")
    with pytest.raises(Unprocessable):
        client.dead(["h"], "")
    assert stub.queue.calls == []


def test_a_topic_that_is_not_there_is_told(client: PopClient) -> None:
    with pytest.raises(NotFound) as caught:
        client.pop("nowhere")
    assert caught.value.code == "topic_not_found"


@pytest.mark.parametrize(
    "body", [b"", b"{]", b"[]", b'{"messages": []}', b'{"messages": [{"offset": 1}], "invisible_ms": 1}']
)
def test_an_answer_that_is_none_is_an_unknown_outcome(body: bytes) -> None:
    with pytest.raises(Unknown) as caught:
        parse_batch("orders", body)
    assert caught.value.code == "answer_unreadable"


@pytest.mark.promise("SDK-4")
def test_pop_20_a_retried_pop_in_order_gets_what_the_lost_answer_held(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 3)
    stub.queue.faults["pop"].extend([QueueFault.DROP_AFTER, QueueFault.DROP_AFTER])
    handles = [message.handle for message in client.pop("orders", order=True).messages]
    assert client.ack(handles) == [] and len(handles) == 3
    assert stub.queue.is_done("billing", "orders")
    (attempt_id,) = {call.request["attempt_id"] for call in stub.queue.calls_of("pop")}
    client.pop("orders", order=True)
    assert stub.queue.calls_of("pop")[-1].request["attempt_id"] != attempt_id
    client.pop("orders", order=True, attempt_id="mine")
    assert stub.queue.calls_of("pop")[-1].request["attempt_id"] == "mine"


def test_pop_20_an_id_without_order_is_refused_by_the_service(stub: StubService, client: PopClient) -> None:
    stub.queue.fill("orders", 1)
    with pytest.raises(Unprocessable) as refused:
        client.pop("orders", attempt_id="x")
    assert refused.value.code == "attempt_id_without_order"
