"""STATIC-8, 9, 21 with two services on one warehouse: queues move between their brokers while both send to them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.meta.static_topics import decide_remap
from deltamq.tables.log.fences import ROUTE_FENCE
from deltamq.tables.queue.metadata import META_PARTITION
from tests.api.running import Api, config_for, running, until
from tests.api.static_calls import StaticTopic, name_of
from tests.faulty_store import FaultyStore, faulty_disk

A, B = "broker-a", "broker-b"
LONG_AGO_MS = 1_000
QUEUES = 4
Json = dict[str, Any]


class Two(NamedTuple):
    """`a` serves broker-a, `b` broker-b; their disks may be slow."""

    a: Api
    b: Api


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("two")
    with (
        running(config_for(folder, brokers=(A,)), Ports(store=faulty_disk(folder))) as a,
        running(config_for(folder, brokers=(B,)), Ports(store=faulty_disk(folder))) as b,
    ):
        until(lambda: all(api.service.meta.now.brokers.available == (A, B) for api in (a, b)))
        yield Two(a, b)


@pytest.fixture
def pair(two: Two, topic: str) -> list[StaticTopic]:
    """A static topic as each of the two sees it: queues 0 and 2 at broker-a, 1 and 3 at broker-b."""
    found = [StaticTopic(api, topic) for api in two]
    assert found[0].put(QUEUES, brokers=[A, B]).status == 201
    until(lambda: topic in two.b.service.meta.now.topics.topics)
    return found


def leader(topic: StaticTopic, queue: int) -> str:
    return topic.chains()[queue].leader.partition


def same_view(pair: list[StaticTopic]) -> None:
    """Both know all that the other knows."""
    until(lambda: pair[0].chains() == pair[1].chains())


class Sender(threading.Thread):
    """Sends one message after another to all queues in turn, each request twice: to one process, then to the other."""

    def __init__(self, pair: list[StaticTopic], name: str) -> None:
        super().__init__()
        self.producer, self.pair = name, pair
        self.sent: dict[str, tuple[str, int]] = {}
        self.stopped = threading.Event()
        self.errors: list[BaseException] = []
        self.start()

    def run(self) -> None:
        try:
            for seq in range(1_000_000):
                if self.stopped.is_set():
                    return
                self._send(seq)
        except BaseException as error:
            self.errors.append(error)

    def _send(self, seq: int) -> None:
        body = f"{self.producer}:{seq}"
        message = {"body": body, "partition": name_of(seq % QUEUES)}
        first, second = self.pair if seq % 3 else self.pair[::-1]
        producer = {"id": self.producer, "seq": seq}
        (placed,) = first.send(message, producer=producer)["ranges"]
        (again,) = second.send(message, producer=producer)["ranges"]
        assert placed == again, "both answer the same logical offset"
        self.sent[body] = placed["partition"], placed["base_offset"]

    def has_sent(self, count: int) -> bool:
        """Whether more than this many requests were answered; raises if one failed."""
        assert not self.errors, self.errors
        return len(self.sent) > count

    def end(self) -> dict[str, tuple[str, int]]:
        self.stopped.set()
        self.join(60)
        assert not self.errors, self.errors
        return self.sent


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_21_both_answer_the_same_logical_offsets_while_queues_move(pair: list[StaticTopic], mode: str) -> None:
    senders = [Sender(pair, "p"), Sender(pair[::-1], "q")]
    for at, brokers in enumerate([(B,), (A,), (A, B), (B,)]):
        counts = [len(one.sent) for one in senders]
        until(lambda counts=counts: all(s.has_sent(n + 8) for s, n in zip(senders, counts, strict=True)))  # type: ignore[misc]  # bound at once
        assert pair[at % 2].remapped(*brokers, mode=mode)
    sent = {body: place for one in senders for body, place in one.end().items()}
    same_view(pair)
    stored = pair[0].stored()
    assert pair[1].stored() == stored
    found = {body: (name_of(queue), offset) for queue, rows in stored.items() for offset, body in rows}
    assert found == sent, "everything acknowledged is where it was said to be"
    assert sum(map(len, stored.values())) == len(sent), "and nothing twice"
    for rows in stored.values():
        offsets = [offset for offset, _ in rows]
        assert offsets == sorted(set(offsets)), "logical offsets grow"
        for producer in ("p", "q"):
            numbers = [int(body[2:]) for _, body in rows if body.startswith(producer)]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_11_whoever_sends_finishes_a_remapping_that_its_process_cannot(
    pair: list[StaticTopic], mode: str
) -> None:
    """broker-a's process cannot put the fence up; a send at the other process, which waits for it, does."""
    first, second = pair
    first.send_to(0, "a", "b")
    old = leader(first, 0)
    with first.without_seals(old):
        second.change(lambda meta: decide_remap(meta, second.name, [B], mode, LONG_AGO_MS, [0]))  # type: ignore[arg-type]  # a RemapMode
        assert old in second.meta.moved_keys(second.id).waiting
        if mode == "available":
            assert second.send_to(0, "c") == [-1]
        assert second.send_to(0, "d", producer={"id": "p", "seq": 0}) in ([2], [10_001])
        again = second.remap(B, queues=[0]).json
        assert again["moved"] == [], "the same command finishes what was cut short"
        assert not second.meta.moved_keys(second.id).waiting
    same_view(pair)
    bodies = [body for _, body in first.stored()[0]]
    assert bodies == (["a", "b", "c", "d"] if mode == "available" else ["a", "b", "d"])


def test_static_08_a_process_that_has_not_heard_of_a_remapping_is_refused_by_the_fence(pair: list[StaticTopic]) -> None:
    """It learns of it by the fence, and sends on to the new leader, without a producer, too."""
    first, second = pair
    first.send_to(0, "a")
    for number, brokers in enumerate([[B], [A], [B], [A]]):
        assert first.remapped(*brokers, queues=[0])
        assert second.send_to(0, f"late {number}") == [1 + number]
    assert [offset for offset, _ in second.stored()[0]] == list(range(5))


def test_static_21_a_request_is_found_wherever_on_its_way_another_process_stored_it(pair: list[StaticTopic]) -> None:
    """Queues move three times between the copies of one request, each of which another process gets."""
    first, second = pair
    messages: list[dict[str, object]] = [{"key": f"k{at}", "body": str(at)} for at in range(24)]
    producer = {"id": "p", "seq": 0}
    placed = first.send(*messages, producer=producer)["ranges"]
    for brokers, mode in (([B], "available"), ([A], "strict"), ([A, B], "available")):
        assert first.remapped(*brokers, mode=mode)
        again = second.send(*messages, producer=producer)
        assert again["duplicate"]
        assert sorted(map(str, again["ranges"])) == sorted(map(str, placed))
    assert len(second.bodies()) == len(messages)


@contextlib.contextmanager
def deaf(api: Api) -> Iterator[None]:
    """Inside, the service hears nothing new of the metadata."""
    store, gate = api.service.warehouse.store, threading.Event()
    assert isinstance(store, FaultyStore)

    def wait(key: str) -> None:
        if META_PARTITION.folder in key:
            assert gate.wait(60)

    store.before["exists"] = wait
    try:
        yield
    finally:
        del store.before["exists"]
        gate.set()


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_21_a_refused_copy_is_looked_for_on_the_whole_way_of_its_queue(
    pair: list[StaticTopic], mode: str
) -> None:
    """While one process holds a copy, another stores the request between the old leader and the present one."""
    first, second = pair
    first.send_to(0, "a")
    source = leader(first, 0)
    hosted = first.api.service.topics.find(first.name)
    assert hosted is not None
    found: list[list[int]] = []
    with deaf(first.api):
        assert second.remapped(B, mode=mode, queues=[0])
        sending = threading.Thread(target=lambda: found.append(first.send_to(0, "b", producer={"id": "p", "seq": 0})))
        sending.start()
        until(lambda: ROUTE_FENCE in hosted.partition(source).open().fences)
        stored = second.send_to(0, "b", producer={"id": "p", "seq": 0})
        assert second.remapped(A, mode=mode, queues=[0])
    sending.join(30)
    assert found == [stored]
    assert [body for _, body in second.stored()[0]] == ["a", "b"]


def test_static_08_growth_of_an_ordered_topic_keeps_both_sending(pair: list[StaticTopic]) -> None:
    first, second = pair
    assert first.put(QUEUES, order_strategy="strict").status == 200
    messages: list[dict[str, object]] = [{"key": f"k{at}", "body": str(at)} for at in range(40)]
    first.send(*messages)
    assert first.put(7).status == 200
    second.send(*messages)
    same_view(pair)
    placed = first.send(*messages)["ranges"]
    assert {one["partition"] for one in placed} == {name_of(queue) for queue in range(7)}
    assert not first.meta.moved_keys(first.id).waiting
    assert len(second.bodies()) == 3 * len(messages)


def test_static_07_a_send_makes_no_plain_topic_of_a_static_one_that_it_has_not_heard_of(two: Two, topic: str) -> None:
    for number in range(10):
        created = StaticTopic(two.a, f"{topic}.{number}")
        assert created.put(2).status == 201
        assert created.at(two.b).send_to(1, "at once") == [0]
