"""Static topics with real processes: queues move under load in both modes, and no reader or sender notices (STATIC).

Two processes serve a broker each. All changes are made by the command line.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from deltamq import Admin, OrderlyConsumer, PopConsumer, Producer, PullConsumer, Result, Verdict
from deltamq.mq.client.messages.message import Sent
from deltamq.mq.client.messages.received import OrderedMessage, PoppedMessage, ReceivedMessage
from deltamq.mq.static.mappings import MappingRemoved
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from tests.e2e.service_process import CLI
from tests.e2e.test_expansion import dying
from tests.e2e.test_two_brokers import Broker, Two, two, until
from tests.forked import run_forked

__all__ = ["dying", "two"]

A, B = "broker-a", "broker-b"
QUEUES = 4
KEYS = [f"k{number}" for number in range(16)]

Command = Callable[..., subprocess.CompletedProcess[str]]


def command_at(broker: Broker) -> Command:
    """Run `deltamq ARGS` against the process of a broker."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_forked(CLI, *arguments, "--url", broker.url)

    return run


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Feed:
    """Sends a number after another for each key, and to each queue by name, until it is stopped."""

    def __init__(self, urls: list[str], topic: str) -> None:
        self._topic = topic
        self._urls = urls
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in (self._by_key, self._by_name)]
        #: Where each message went, by its text.
        self.sent: dict[str, Sent] = {}
        self.errors: list[Exception] = []
        for one in self._threads:
            one.start()

    def _run(self, send: Callable[[Producer, int], None]) -> None:
        try:
            with Producer(self._urls) as producer:
                number = 0
                while not self._stop.is_set():
                    send(producer, number)
                    number += 1
        except Exception as error:
            self.errors.append(error)

    def _by_key(self, producer: Producer, number: int) -> None:
        futures = {key: producer.send_soon(self._topic, f"{key}:{number}", key=key) for key in KEYS}
        self.sent.update((f"{key}:{number}", future.result(60)) for key, future in futures.items())

    def _by_name(self, producer: Producer, number: int) -> None:
        queue = producer.partitions(self._topic)[number % QUEUES]
        self.sent[f"{queue}:{number}"] = producer.send(self._topic, f"{queue}:{number}", partition=queue)

    def sends_more(self, count: int) -> None:
        """Wait until so many more messages are sent."""
        wanted = len(self.sent) + count
        until(lambda: self.errors or len(self.sent) >= wanted, within_s=60)
        assert not self.errors, self.errors

    def stop(self) -> None:
        self._stop.set()
        for one in self._threads:
            one.join(60)
        assert not any(one.is_alive() for one in self._threads)


class Heard:
    """What one consumer heard, in its order, safe for several threads."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.offsets: dict[str, list[int]] = defaultdict(list)
        self._lock = threading.Lock()

    def __call__(self, message: ReceivedMessage | PoppedMessage | OrderedMessage) -> None:
        with self._lock:
            self.texts.append(message.text)
            self.offsets[message.partition].append(message.offset)

    def numbers(self) -> dict[str, list[int]]:
        """Return the numbers heard of each key and each named queue, in the order in which they were heard."""
        found: dict[str, list[int]] = defaultdict(list)
        for text in list(self.texts):
            name, _, number = text.rpartition(":")
            found[name].append(int(number))
        return found


class Readers:
    """A pull, a pop and an ordered consumer of the topic, which stop when the block ends."""

    def __init__(self, urls: list[str], topic: str) -> None:
        self._urls, self._topic = urls, topic
        self.pulled, self.popped, self.ordered = Heard(), Heard(), Heard()
        self._stop = threading.Event()
        self._stack = ExitStack()
        self.errors: list[Exception] = []

    @property
    def all(self) -> dict[str, Heard]:
        return {"pull": self.pulled, "pop": self.popped, "orderly": self.ordered}

    def __enter__(self) -> Readers:
        def pop(message: PoppedMessage) -> Result:
            self.popped(message)
            return Result.OK

        def listen(message: OrderedMessage) -> Verdict:
            self.ordered(message)
            return Verdict.SUCCESS

        popping = self._stack.enter_context(PopConsumer(self._urls, "billing", self._topic, pop))
        ordering = self._stack.enter_context(OrderlyConsumer(self._urls, "ledger", self._topic, listen))
        popping.start()
        ordering.start()
        pulling = threading.Thread(target=self._pull)
        pulling.start()
        self._stack.callback(pulling.join, 60)
        self._stack.callback(self._stop.set)
        return self

    def wait_for(self, name: str, count: int) -> None:
        """Wait until a reader has heard so many messages, or for too long."""
        heard = self.all[name]
        with suppress(AssertionError):
            until(lambda: self.errors or len(heard.texts) >= count, within_s=60)
        assert self.errors == []

    def _pull(self) -> None:
        try:
            with PullConsumer(self._urls, self._topic) as consumer:
                while not self._stop.is_set():
                    for message in consumer.poll(wait_ms=200):
                        self.pulled(message)
        except Exception as error:
            self.errors.append(error)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def feed(two: Two) -> Iterator[Callable[[str], Feed]]:
    made: list[Feed] = []

    def make(topic: str) -> Feed:
        made.append(Feed([two.a.url, two.b.url], topic))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["best_tried", "strict"])
def test_static_08_queues_move_again_and_again_while_everything_is_read_once_and_in_order(
    two: Two, feed: Callable[[str], Feed], strategy: str
) -> None:
    run = command_at(two.a)
    urls = [two.a.url, two.b.url]
    created = run("topic", "create", "orders", "--static", "--queues", f"{QUEUES}", "--order-strategy", strategy)
    assert created.stdout == f"created orders: {QUEUES} logical queues on {A}, {B}\n", created.stderr
    assert run("group", "create", "billing").returncode == 0
    with Readers(urls, "orders") as readers:
        sender = feed("orders")
        sender.sends_more(100)
        moves = [("strict", B), ("available", A), ("available", B), ("strict", A), ("available", A, B), ("strict", B)]
        for mode, *brokers in moves:
            named = [part for broker in brokers for part in ("--broker", broker)]
            done = document(run("topic", "remap", "orders", *named, "--mode", mode, "--json"))
            assert done["moved"] and all(one["end_offset"] is not None for one in done["moved"]), done
            sender.sends_more(100)
        sender.stop()
        assert sender.errors == []
        for name, heard in readers.all.items():
            readers.wait_for(name, len(sender.sent))
            missing = {text: at for text, at in sender.sent.items() if text not in set(heard.texts)}
            assert not missing, f"{name} did not hear everything"
            assert sorted(heard.texts) == sorted(sender.sent), f"{name}: everything once, and nothing else"
        assert {one.partition for one in sender.sent.values()} == set(readers.pulled.offsets), "queues are named alone"
    for heard in (readers.pulled, readers.ordered):
        assert all(numbers == sorted(numbers) for numbers in heard.numbers().values()), "keys are in order"
        assert all(offsets == sorted(set(offsets)) for offsets in heard.offsets.values()), "logical offsets grow"
    decided = [(one.partition, one.offset) for one in sender.sent.values() if one.offset != -1]
    assert len(set(decided)) == len(decided)
    pulled = {(name, offset) for name, offsets in readers.pulled.offsets.items() for offset in offsets}
    assert set(decided) <= pulled, "messages lie at the offsets that their producers were told"
    with Admin(urls) as admin:
        info = admin.get_topic("orders")
        assert {one.broker for one in info.queues} == {B}
        assert sum(one.messages or 0 for one in info.queues) == len(sender.sent)
        assert admin.get_group("ledger").lag == admin.get_group("billing").lag == 0
    assert run("topic", "check", "orders").returncode == 0
    assert run("topic", "repair", "orders").stdout == "orders: nothing to repair\n"


@pytest.mark.long
def test_static_18_the_command_line_reads_and_shows_logical_queues(two: Two) -> None:
    run = command_at(two.b)
    assert run("topic", "create", "orders", "--static", "--queues", "2").returncode == 0
    with Producer(two.a.url) as producer:
        first, second = producer.partitions("orders")
        for mode in ("available", "strict"):
            for number in range(3):
                producer.send("orders", f"{mode}{number}", partition=first)
            planned = document(run("topic", "remap", "orders", "--broker", B, "--plan", "--mode", mode, "--json"))
            broker = B if planned["moved"] else A
            moved = run("topic", "remap", "orders", "--broker", broker, "--queue", "0", "--mode", mode)
            assert moved.returncode == 0, moved.stderr
            assert f"orders: 1 logical queue to move ({mode}: " in moved.stdout
    lines = [json.loads(line) for line in run("consume", "orders", "--json").stdout.splitlines()]
    assert [(one["partition"], one["offset"]) for one in lines] == [
        (first, offset) for offset in (0, 1, 2, 10_000, 10_001, 10_002)
    ]
    shown = run("topic", "show", "orders")
    assert f"{first}" in shown.stdout and f"{second}" in shown.stdout
    for partition in ("orders@broker-a", "orders#2@broker-b", "orders#3@broker-a"):
        assert partition in shown.stdout, "the physical partitions are beside them"
    refused = run("consume", "orders", "--partition", "orders@broker-a")
    assert refused.returncode == 1, "clients name logical queues"
    grouped = run("consume", "orders", "--group", "billing", "--json")
    assert len(grouped.stdout.splitlines()) == 6
    assert document(run("group", "show", "billing", "--json"))["topics"][0]["lag"] == 0


@pytest.mark.long
def test_static_05_a_mapping_that_is_lost_is_named_and_made_anew(two: Two, tmp_path: Path) -> None:
    run = command_at(two.b)
    assert run("topic", "create", "orders", "--static", "--queues", "2").returncode == 0
    with Producer(two.b.url) as producer:
        producer.send("orders", "1", key="k1")
        assert document(run("topic", "remap", "orders", "--broker", B, "--json"))["moved"]
        # Broker A leads nothing now: its mapping holds the copy of the queue that it has led.
        log = MetaLog(Warehouse.open(str(tmp_path / "warehouse")))
        topic_id = log.meta.topics.topic("orders").id
        log.submit_any(lambda _: [MappingRemoved(topic_id=topic_id, holder=A)])
        until(lambda: run("topic", "check", "orders").returncode == 1)
        torn = run("topic", "check", "orders")
        assert f"broker {A} has no mapping" in torn.stdout
        refused = run("topic", "remap", "orders", "--broker", A)
        assert refused.returncode == 1
        assert "error: mapping_incomplete: " in refused.stderr and "deltamq topic repair" in refused.stderr
        producer.send("orders", "2", key="k1")
        assert run("topic", "repair", "orders", "--plan").returncode == 0
        assert run("topic", "check", "orders").returncode == 1, "a plan writes nothing"
        mended = run("topic", "repair", "orders")
        assert mended.stdout.endswith(f"wrote the mappings of {A}, {B}\n"), mended
        assert run("topic", "check", "orders").returncode == 0
        assert document(run("topic", "remap", "orders", "--broker", A, "--json"))["moved"]
        producer.send("orders", "3", key="k1")
    texts = [json.loads(line)["body"] for line in run("consume", "orders", "--json").stdout.splitlines()]
    assert texts == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("dying", "mode"),
    [
        ("fence.before_commit", "available"),
        ("seal.after_fence", "strict"),
        ("seal.after_fence", "available"),
        ("seal.after_event", "strict"),
    ],
    indirect=["dying"],
)
@pytest.mark.long
def test_static_11_a_remapping_whose_process_is_killed_is_finished_by_another(dying: list[Broker], mode: str) -> None:
    first, second = dying
    urls = [first.url, second.url]
    run = command_at(second)
    assert run("topic", "create", "orders", "--static", "--queues", f"{QUEUES}").returncode == 0
    sender = Feed(urls, "orders")
    pulled = Heard()
    try:
        sender.sends_more(100)
        # The first process begins to seal, and is killed there; the command asks the second one again.
        remap = ["topic", "remap", "orders", "--broker", B, "--mode", mode, "--json", "--url", ",".join(urls)]
        moved = document(run_forked(CLI, *remap))
        assert first.process.wait() != 0, "the process is gone"
        assert {(one["queue"], one["from"], one["to"]) for one in moved["moved"]} == {(0, A, B), (2, A, B)}
        assert all(one["end_offset"] is not None and one["logic_offset"] is not None for one in moved["moved"])
        sender.sends_more(100)
    finally:
        sender.stop()
    assert sender.errors == []
    assert run("topic", "check", "orders").returncode == 0
    with PullConsumer(second.url, "orders") as consumer:
        while consumer.positions() != consumer.end_offsets():
            for message in consumer.poll(wait_ms=200):
                pulled(message)
    assert sorted(pulled.texts) == sorted(sender.sent), "everything once"
    assert all(numbers == sorted(numbers) for numbers in pulled.numbers().values()), "keys are in order"
