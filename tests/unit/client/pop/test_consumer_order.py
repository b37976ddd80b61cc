"""Consumers of groups that want their messages in order (POP-16, POP-17)."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from deltamq.mq.client.messages.received import PoppedMessage, Result
from deltamq.mq.errors import Forbidden
from tests.unit.client.pop.pop_consumers import Consume, Seen, wait_done
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

# Order ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-6")
@pytest.mark.parametrize("max_messages", [None, 8])
def test_pop_16_a_partition_in_order_is_handled_one_after_another(
    stub: StubService, consume: Consume, seen: Seen, max_messages: int | None
) -> None:
    stub.queue.fill("orders", 60, partitions=3)
    running: Counter[str] = Counter()
    crowded: list[str] = []

    def handle(message: PoppedMessage) -> Result:
        with stub.changed:
            running[message.partition] += 1
            if running[message.partition] > 1:
                crowded.append(message.partition)
        first_time = message.offset % 7 == 3 and message.delivery_attempt == 1
        seen(message)
        with stub.changed:
            running[message.partition] -= 1
        return Result.RETRY(delay_ms=1) if first_time else Result.OK

    consume(handle, order=True, max_messages=max_messages)
    consume(handle, order=True, max_messages=max_messages)
    wait_done(stub, timeout_s=20)
    assert crowded == []
    by_partition: dict[str, list[int]] = {}
    for message in seen.messages:
        by_partition.setdefault(message.partition, []).append(message.offset)
    for offsets in by_partition.values():
        # Nothing overtakes a message that failed: without the repetition the order is that of the log.
        assert list(dict.fromkeys(offsets)) == list(range(20))
        assert all(later <= earlier + 1 for earlier, later in pairwise(offsets))


@pytest.mark.promise("SDK-6")
def test_pop_17_messages_of_a_key_follow_each_other(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 60, key=lambda n: f"k{n % 6}")
    poison = 7

    def handle(message: PoppedMessage) -> Result:
        seen(message)
        again = int(message.body) == poison and message.delivery_attempt < 3
        return Result.RETRY(delay_ms=50) if again else Result.OK

    consume(handle, order="key")
    consume(handle, order="key")
    wait_done(stub)
    by_key: dict[str | None, list[int]] = {}
    for message in seen.messages:
        by_key.setdefault(message.key, []).append(int(message.body))
    for key in range(6):
        expected = list(range(key, 60, 6))
        if key == poison % 6:
            at = expected.index(poison)
            expected[at:at] = [poison, poison]
        assert by_key[f"k{key}"] == expected
    # The other keys went on meanwhile.
    last_of_poison = max(at for at, number in enumerate(seen.numbers) if number == poison)
    assert seen.numbers.index(8 + 12) < last_of_poison


@pytest.mark.parametrize(("order", "sent"), [(True, True), ("key", "key"), (False, False)])
def test_a_consumer_that_does_not_say_follows_its_group(
    stub: StubService, consume: Consume, seen: Seen, order: bool | str, sent: bool | str
) -> None:
    stub.queue.look(lambda twin: twin.put_group("billing", order=order))
    stub.queue.faults["GET"].extend([QueueFault.UNAVAILABLE, QueueFault.DROP_AFTER, QueueFault.GARBAGE])
    stub.queue.fill("orders", 20, key="k")
    consume(seen)
    wait_done(stub)
    assert {call.request.get("order") for call in stub.queue.calls_of("pop")} == {sent}
    assert sorted(seen.numbers) == list(range(20))
    assert order is False or seen.numbers == list(range(20))


def test_a_group_that_may_not_be_seen_ends_the_run(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.faults["GET"].append(QueueFault.FORBIDDEN)
    with pytest.raises(Forbidden):
        consume(seen, start=False).run()


def test_a_consumer_can_be_closed_before_the_service_is_there(consume: Consume, seen: Seen, stub: StubService) -> None:
    stub.away = True
    consumer = consume(seen)
    stub.queue.wait_for(lambda: stub.away_calls >= 2)
    assert consumer.close()
    assert consumer.error is None


def test_an_ordered_consumer_acknowledges_at_once(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 20)
    began = time.monotonic()
    consume(seen, order=True, ack_within_ms=5_000)
    wait_done(stub)
    assert seen.numbers == list(range(20))
    assert time.monotonic() - began < 30, "each would wait for 5 s"


# Lost answers --------------------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-4")
@pytest.mark.parametrize("order", [True, "key"])
@pytest.mark.parametrize("fault", [QueueFault.DROP_AFTER, QueueFault.GARBAGE, QueueFault.HANG_AFTER])
def test_pop_20_a_lost_answer_does_not_stop_a_partition_for_a_lease(
    stub: StubService, consume: Consume, seen: Seen, order: Any, fault: QueueFault
) -> None:
    stub.queue.fill("orders", 12, key=lambda n: f"k{n % 3}")
    # A service that hangs costs two seconds each time.
    again = QueueFault.DROP_AFTER if fault is QueueFault.HANG_AFTER else fault
    stub.queue.faults["pop"].extend([fault, QueueFault.NONE, again, QueueFault.UNAVAILABLE, again])
    consume(seen, order=order, invisible_ms=3_600_000, wait_ms=50)
    wait_done(stub)
    for key in range(3):
        assert [n for n in seen.numbers if n % 3 == key] == list(range(key, 12, 3)), "each once and in order"
    assert {message.delivery_attempt for message in seen.messages} == {1}
    pops = stub.queue.calls_of("pop")
    answered = [call.request["attempt_id"] for call in pops if call.fault is QueueFault.NONE]
    assert len(answered) == len(set(answered)), "each pop has an id of its own"
    for call, later in pairwise(pops):
        if call.fault is not QueueFault.NONE:
            assert later.request["attempt_id"] == call.request["attempt_id"], "and is repeated with it"


def test_pop_20_pops_without_order_have_no_id(stub: StubService, consume: Consume, seen: Seen) -> None:
    stub.queue.fill("orders", 3)
    consume(seen)
    wait_done(stub)
    assert not any("attempt_id" in call.request for call in stub.queue.calls_of("pop"))
