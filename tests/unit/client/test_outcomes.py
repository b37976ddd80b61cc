"""Each error says what became of what the call was to store, and the table "What do I catch" is true (SPEC SEND-11)."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

import deltamq
from deltamq import (
    Admin,
    DeltaMQError,
    ForkedClient,
    Message,
    PartlySent,
    PopClient,
    PopConsumer,
    Producer,
    PullConsumer,
)
from deltamq.mq.client.http.retries import Patience
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import AFTER, Fault
from tests.unit.client.test_forks import in_child

pytestmark = pytest.mark.threads

README = Path(__file__).parents[3] / "mq" / "client" / "README.md"
SEND, BATCH, TABLE = "`send`, a future's `result()`", "`send_batch`, `send_arrow`", "`send_table`"
RUN, READ, SETTLE, ADMIN = "`run` of a consumer", "`poll`, `pop`", "`ack`, `nack`, `dead`, `commit`", "`Admin`"
FORKED = "a future, in the child of a fork"
TWICE = Patience(retries=1, first_wait_ms=1, wait_ms_max=1, timeout_s=5, request_timeout_s=2)


def rows_of_the_table() -> Iterator[tuple[str, str, str]]:
    """Return call, class and outcome of each row; one without a call belongs to the row above."""
    section = README.read_text(encoding="utf-8").partition("## What do I catch")[2].partition("\n## ")[0]
    call = ""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0] not in ("call", "---"):
            call = cells[0] or call
            yield from ((call, name, cells[2]) for name in re.findall(r"`([A-Z][a-z]\w+)`", cells[1]))


ROWS = sorted(rows_of_the_table())


class Tried:
    """Clients that try twice, of a service with the topic `orders` of two partitions, and faults that it meets."""

    def __init__(self, stub: StubService, producer: Producer, admin: Admin, pops: PopClient) -> None:
        self.stub, self._producer, self.admin, self.pops = stub, producer, admin, pops
        self.first, self.second = stub.create("orders", 2).route.partitions

    def producer(self, *faults: Fault) -> Producer:
        self.stub.faults.extend(faults)
        return self._producer

    def batch(self) -> list[Message]:
        return [Message(b"1", partition=self.first), Message(b"2", partition=self.second)]

    def not_let_in(self) -> object:
        self.stub.valid_tokens = {"another"}
        return self._producer.send_soon("orders", b"x").result()

    def behind_an_unresolved_message(self) -> object:
        self.stub.topics["orders"].strict = True
        with pytest.raises(deltamq.OffsetMismatch):
            self._producer.send("orders", b"x", partition=self.first, expected_offset=7)
        return self._producer.send("orders", b"y", partition=self.first)

    def pop(self, *faults: QueueFault) -> list[str]:
        self.stub.queue.fill("orders", 1)
        self.stub.queue.faults["pop"].extend(faults)
        return [message.handle for message in self.pops.pop("orders").messages]

    def ack(self, *faults: QueueFault) -> object:
        self.stub.queue.faults["ack"].extend(faults)
        return self.pops.ack(self.pop())

    def run(self) -> None:
        self.stub.queue.faults["pop"].append(QueueFault.FORBIDDEN)
        PopConsumer(self.stub.url, "billing", "orders", print, patience=TWICE).run()

    def poll_beyond_the_end(self) -> object:
        with PullConsumer(self.stub.url, "orders", partitions=[self.first]) as consumer:
            consumer.seek(self.first, 7)
            return consumer.poll(wait_ms=0)

    def put_group(self, *faults: QueueFault) -> object:
        self.stub.queue.faults["PUT"].extend(faults)
        return self.admin.put_group("audit", max_attempts=3)


@pytest.fixture
def tried(stub: StubService, make_producer: Callable[..., Producer]) -> Iterator[Tried]:
    with Admin(stub.url, patience=TWICE) as admin, PopClient(stub.url, "billing", patience=TWICE) as pops:
        yield Tried(stub, make_producer(retries=1), admin, pops)


LOST = (Fault.DROP_AFTER, Fault.BUSY)
QUEUE_LOST = (QueueFault.DROP_AFTER, QueueFault.DROP_AFTER)
THEN_AWAY = (QueueFault.DROP_AFTER, QueueFault.UNAVAILABLE)
ARROW = pa.table({"body": [b"1", b"2"]})
#: A call that ends with the error of each row. Those with an unknown outcome are applied all the same.
CALLS: dict[tuple[str, str], Callable[[Tried], object]] = {
    (SEND, "Refused"): lambda tried: tried.producer(Fault.REFUSE).send("orders", b"x"),
    (SEND, "TooLarge"): lambda tried: tried.producer().send("orders", bytes(5 << 20)),
    (SEND, "NotFound"): lambda tried: tried.producer().send("orders", b"x", partition="orders@broker-z"),
    (SEND, "Unauthenticated"): Tried.not_let_in,
    (SEND, "Conflict"): Tried.behind_an_unresolved_message,
    (SEND, "OffsetMismatch"): lambda tried: tried.producer().send(
        "orders", b"x", partition=tried.first, expected_offset=7
    ),
    (SEND, "Overloaded"): lambda tried: tried.producer(Fault.BUSY, Fault.BUSY).send("orders", b"x"),
    (SEND, "Unavailable"): lambda tried: tried.producer(Fault.CLOSED, Fault.CLOSED).send(
        "orders", b"x", partition=tried.first
    ),
    (SEND, "Unknown"): lambda tried: tried.producer(*LOST).send_soon("orders", b"x").result(),
    (BATCH, "PartlySent"): lambda tried: tried.producer(Fault.REFUSE).send_batch("orders", tried.batch()),
    (BATCH, "Refused"): lambda tried: tried.producer(Fault.REFUSE, Fault.REFUSE).send_batch("orders", tried.batch()),
    (BATCH, "Unknown"): lambda tried: tried.producer(*LOST).send_arrow("orders", ARROW, partition=tried.first),
    (TABLE, "TableSendInterrupted"): lambda tried: tried.producer(*LOST).send_table("orders", ARROW, progress=False),
    (RUN, "Refused"): Tried.run,
    (RUN, "Forbidden"): Tried.run,
    (READ, "Unavailable"): lambda tried: tried.pop(*THEN_AWAY),
    (READ, "Unknown"): lambda tried: tried.pop(*QUEUE_LOST),
    (READ, "OffsetOutOfRange"): Tried.poll_beyond_the_end,
    (SETTLE, "Unavailable"): lambda tried: tried.ack(*THEN_AWAY),
    (SETTLE, "Unknown"): lambda tried: tried.ack(*QUEUE_LOST),
    (ADMIN, "Refused"): lambda tried: tried.put_group(QueueFault.FORBIDDEN),
    (ADMIN, "NotFound"): lambda tried: tried.admin.get_topic("nothing"),
    (ADMIN, "Unprocessable"): lambda tried: tried.admin.offsets_at("orders", datetime(2026, 1, 1)),
    (ADMIN, "Conflict"): lambda tried: tried.admin.create_topic("orders", partitions=1),
    (ADMIN, "Unavailable"): lambda tried: tried.put_group(*THEN_AWAY),
    (ADMIN, "Unknown"): lambda tried: tried.put_group(*QUEUE_LOST),
}
#: Whether the call of a row was applied.
APPLIED: dict[str, Callable[[Tried], bool]] = {
    READ: lambda tried: (
        bool(tried.stub.queue.calls_of("pop"))
        and tried.stub.queue.look(lambda twin: twin.in_flight("billing", "orders")) > 0
    ),
    SETTLE: lambda tried: tried.stub.queue.is_done("billing", "orders"),
    ADMIN: lambda tried: "audit" in tried.admin.list_groups(),
}


def test_the_table_has_a_call_here_for_each_row_and_each_row_says_an_outcome() -> None:
    assert [*sorted(CALLS), (FORKED, "ForkedClient")] == [(call, name) for call, name, _ in ROWS]
    assert {outcome for _, _, outcome in ROWS} <= {"`not_stored`", "`unknown`", "that of `send`"}


@pytest.mark.parametrize(("call", "name", "says"), [row for row in ROWS if row[0] != FORKED])
def test_send_11_an_error_says_what_became_of_the_call(tried: Tried, call: str, name: str, says: str) -> None:
    with pytest.raises(getattr(deltamq, name)) as caught:
        CALLS[call, name](tried)
    if says == "that of `send`":
        says = next(outcome for row, kind, outcome in ROWS if (row, kind) == (SEND, name))
    assert f"`{caught.value.outcome}`" == says
    tried.stub.valid_tokens = None
    is_applied = APPLIED.get(call, lambda tried: bool(tried.stub.bodies("orders")))(tried)
    assert is_applied is (says == "`unknown`")


#: Faults that wait for the test or for a second, or are none.
_OTHERS = (Fault.NONE, Fault.HANG_BEFORE, Fault.HANG_AFTER, Fault.BUSY_SECOND)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in _OTHERS], ids=lambda one: one.name)
@pytest.mark.parametrize("then", [Fault.NONE, Fault.BUSY, Fault.CLOSED], ids=lambda one: one.name)
def test_send_11_no_send_that_is_said_not_to_be_stored_is_stored(
    stub: StubService, make_producer: Callable[..., Producer], fault: Fault, then: Fault
) -> None:
    stub.create("orders", 1)
    stub.faults.extend([fault, then])
    outcome = "stored"
    try:
        make_producer(retries=0 if then is Fault.NONE else 1).send("orders", b"x", partition="orders@broker-a")
    except DeltaMQError as error:
        outcome = error.outcome
    assert outcome == "unknown" or (outcome == "stored") is bool(stub.bodies("orders"))
    if fault in AFTER and then in (Fault.NONE, Fault.BUSY):
        assert outcome == "unknown", "a 5xx says nothing"


def test_send_11_a_batch_says_it_of_each_message(tried: Tried) -> None:
    messages = [Message(b"%d" % at, partition=(tried.first, tried.second)[at % 2]) for at in range(5)]
    tried.stub.refuses = lambda message: message["partition"] == tried.second
    with pytest.raises(PartlySent) as caught:
        tried.producer().send_batch("orders", messages)
    assert caught.value.outcomes() == ["stored", "not_stored"] * 2 + ["stored"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_send_11_in_the_child_of_a_fork_the_outcome_of_the_parents_send_is_not_known(tried: Tried) -> None:
    sent = threading.Event()
    tried.stub.on_post = lambda post: sent.wait(10)
    future = tried.producer().send_soon("orders", b"x")
    assert in_child(lambda: _outcome_of_a_fork(future.result)) == "unknown"
    sent.set()
    assert future.result(10).offset == 0
    with PullConsumer(tried.stub.url, "orders") as consumer:
        assert in_child(lambda: _outcome_of_a_fork(consumer.poll)) == "not_stored"


def _outcome_of_a_fork(call: Callable[[], object]) -> str:
    with pytest.raises(ForkedClient) as caught:
        call()
    return caught.value.outcome
