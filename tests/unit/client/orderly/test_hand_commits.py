"""Listeners that commit by hand, against the stub service (SPEC CONS-8)."""

from __future__ import annotations

import pytest

from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.client.orderly.listener import Listening
from deltamq.mq.client.pop.telemetry import ConsumerCounters
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.client.shells.threads import ThreadShell
from deltamq.mq.order.orderly import Verdict
from tests.unit.client.orderly.orderly_consumers import PARTITION, Ear, Listen, fill, listen
from tests.unit.client.stub_service import StubService

__all__ = ["listen"]


def test_cons_08_a_commit_commits_all_heard_so_far_and_a_success_nothing(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 7)
    ear = Ear(stub, lambda message: Verdict.COMMIT if message.offset % 3 == 2 else Verdict.SUCCESS)
    consumer = listen(ear, autocommit=False)
    stub.wait_for(lambda: len(ear.heard) == 7 and stub.order.committed.get(PARTITION) == 6)
    assert {offset for _, _, offset in stub.order.commits} <= {3, 6}
    assert consumer.positions() == {("orders", PARTITION): 6}
    assert (consumer.stats().ok, consumer.stats().retried) == (7, 0)


def test_cons_08_a_rollback_hears_again_from_the_last_commit(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 6)
    rolled_back = []

    def say(message: OrderedMessage) -> Verdict:
        if message.offset == 4 and not rolled_back:
            rolled_back.append(message)
            return Verdict.ROLLBACK
        return Verdict.COMMIT if message.offset in (1, 5) else Verdict.SUCCESS

    ear = Ear(stub, say)
    listen(ear, autocommit=False)
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 6)
    assert ear.offsets() == [0, 1, 2, 3, 4, 2, 3, 4, 5]


def test_cons_08_a_suspension_brings_only_its_own_message_again(stub: StubService, listen: Listen) -> None:
    stub.create("orders", 1)
    fill(stub, 3)

    def say(message: OrderedMessage) -> Verdict:
        if message.offset == 1 and message.attempt == 1:
            raise OSError("no disk")
        return Verdict.COMMIT if message.offset == 2 else Verdict.SUCCESS

    ear = Ear(stub, say)
    listen(ear, autocommit=False)
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 3)
    assert ear.offsets() == [0, 1, 1, 2]


def test_cons_08_after_a_handover_the_next_client_hears_what_was_not_committed(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 5)
    one = Ear(stub, lambda message: Verdict.COMMIT if message.offset == 1 else Verdict.SUCCESS)
    consumer = listen(one, autocommit=False, client_id="one")
    stub.wait_for(lambda: len(one.heard) == 5)
    assert consumer.close()
    other = Ear(stub, lambda message: Verdict.COMMIT if message.offset == 4 else Verdict.SUCCESS)
    listen(other, autocommit=False, client_id="two")
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 5)
    assert (one.offsets(), other.offsets()) == ([0, 1, 2, 3, 4], [2, 3, 4])


def test_cons_08_deaths_of_clients_set_nothing_aside_because_the_position_is_the_listeners(
    stub: StubService, listen: Listen
) -> None:
    stub.create("orders", 1)
    fill(stub, 2)
    stub.order.attempts[PARTITION] = 3
    ear = Ear(stub, lambda message: Verdict.COMMIT if message.offset == 1 else Verdict.SUCCESS)
    listen(ear, autocommit=False)
    stub.wait_for(lambda: stub.order.committed.get(PARTITION) == 2)
    assert ear.offsets() == [0, 1] and stub.order.aside == []


@pytest.mark.parametrize("verdict", [Verdict.COMMIT, Verdict.ROLLBACK])
def test_cons_08_verdicts_of_hand_commits_are_no_success_with_autocommit(verdict: Verdict) -> None:
    message = OrderedMessage(PARTITION, 0, b"0")
    committing = Listening(ThreadShell(), lambda _: verdict, ConsumerCounters())
    assert run_now(committing.run(message, 1, "0")).verdict is Verdict.SUSPEND
    by_hand = Listening(ThreadShell(), lambda _: verdict, ConsumerCounters(), by_hand=True)
    assert run_now(by_hand.run(message, 1, "0")).verdict is verdict
