"""Consumers of groups against the real service, and with the revive job, as processes (CONS-5, POP, RETRY-1)."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq import Admin, Message, PopConsumer, Producer, Result
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import PoppedMessage
from tests.e2e.as_static import create
from tests.e2e.chaos_proxy import ChaosProxy
from tests.e2e.service_process import DELTAMQ, ServiceProcess

pytestmark = pytest.mark.static_too
QUICK = Patience(first_wait_ms=5, wait_ms_max=200)


@pytest.fixture(scope="module")
def small_times(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Services of this module allow invisible times of a fraction of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAMQ_QUEUE_INVISIBLE_MS_MIN", "100")
        yield tmp_path_factory.mktemp("pop")


@pytest.fixture(scope="module")
def pop_service(small_times: Path) -> Iterator[ServiceProcess]:
    service = ServiceProcess(small_times / "warehouse")
    yield service
    service.close()


class Seen:
    """What handlers of one or more consumers got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.messages: list[PoppedMessage] = []

    def __call__(self, message: PoppedMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    @property
    def numbers(self) -> list[int]:
        with self._lock:
            return [int(message.body) for message in self.messages]

    def wait_for(self, condition: Callable[[list[PoppedMessage]], bool], timeout_s: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.messages), timeout_s), len(self.messages)


def has(count: int) -> Callable[[list[PoppedMessage]], bool]:
    return lambda messages: len(messages) == count


def has_more_than(count: int) -> Callable[[list[PoppedMessage]], bool]:
    return lambda messages: len(messages) > count


def fill(url: str, topic: str, count: int, *, partitions: int = 4) -> None:
    with Admin(url) as admin, Producer(url) as producer:
        create(admin, topic, partitions)
        producer.send_batch(topic, [Message(str(n).encode(), key=f"k{n % 50}") for n in range(count)])


def is_done(admin: Admin, group: str) -> bool:
    topics = admin.get_group(group).topics
    return all(one.lag == 0 and one.in_flight == 0 for topic in topics for one in topic.partitions)


def wait_done(url: str, group: str, timeout_s: float = 60.0) -> None:
    """Wait until the group has nothing left and nothing in flight."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    with Admin(url) as admin:
        while not is_done(admin, group):
            assert time.monotonic() < deadline, admin.get_group(group)
            pause.wait(0.02)


# Without failures: once ----------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-1")
def test_cons_05_two_consumers_of_a_group_share_a_topic(pop_service: ServiceProcess, topic: str) -> None:
    fill(pop_service.url, topic, 3_000)
    seen = Seen()
    consumers = [PopConsumer(pop_service.url, "shared", topic, seen, patience=QUICK) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    seen.wait_for(lambda messages: len(messages) >= 3_000)
    wait_done(pop_service.url, "shared")
    assert all(consumer.close() for consumer in consumers)
    assert sorted(seen.numbers) == list(range(3_000))
    assert sum(consumer.stats().ok for consumer in consumers) == 3_000
    assert sum(consumer.stats().expired for consumer in consumers) == 0


@pytest.mark.parametrize("settings", [{"batch_messages": 200}, {"format": "arrow"}], ids=["messages", "arrow"])
def test_batches_arrive_once_each(pop_service: ServiceProcess, topic: str, settings: dict[str, Any]) -> None:
    fill(pop_service.url, topic, 3_000)
    group = f"batches-{topic}"
    bodies: list[bytes] = []

    def handle(batch: Any) -> None:
        if isinstance(batch, list):
            bodies.extend(message.body for message in batch)
        else:
            bodies.extend(batch["body"].to_pylist())

    with PopConsumer(pop_service.url, group, topic, handle, **settings) as consumer:
        done = threading.Event()
        while len(bodies) < 3_000:
            assert not done.wait(0.01)
            assert consumer.error is None
    wait_done(pop_service.url, group)
    assert sorted(map(int, bodies)) == list(range(3_000))


@pytest.mark.static_too(always=True)
@pytest.mark.parametrize("order", [pytest.param(True, marks=pytest.mark.long), "key"])
def test_pop_16_pop_17_order_holds_with_two_consumers(pop_service: ServiceProcess, topic: str, order: Any) -> None:
    fill(pop_service.url, topic, 300)
    group = f"ordered-{topic}"
    with Admin(pop_service.url) as admin:
        admin.create_group(group, order=order)
    seen = Seen()
    # Neither says so: the group does.
    with (
        PopConsumer(pop_service.url, group, topic, seen),
        PopConsumer(pop_service.url, group, topic, seen),
    ):
        seen.wait_for(lambda messages: len(messages) >= 300)
    wait_done(pop_service.url, group)
    place: Callable[[PoppedMessage], str | None] = (lambda m: m.partition) if order is True else (lambda m: m.key)
    by_place: dict[str | None, list[int]] = {}
    for message in seen.messages:
        by_place.setdefault(place(message), []).append(message.offset)
    assert all(offsets == sorted(offsets) for offsets in by_place.values())
    assert sorted(seen.numbers) == list(range(300))


def test_pop_15_a_waiting_consumer_gets_a_message_when_it_comes(pop_service: ServiceProcess, topic: str) -> None:
    fill(pop_service.url, topic, 1)
    seen = Seen()
    with PopConsumer(pop_service.url, "waiting", topic, seen), Producer(pop_service.url) as producer:
        seen.wait_for(lambda messages: len(messages) == 1)
        for n in range(1, 21):
            producer.send(topic, str(n))
            seen.wait_for(has(n + 1), 5)


def _until_waiting(url: str, pops: int) -> None:
    """Return when so many pops wait at the service."""
    deadline = time.monotonic() + 15
    while True:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            if f"\ndeltamq_waiting_pops {pops}.0\n" in answer.read().decode():
                return
        assert time.monotonic() < deadline, f"not {pops} pops wait"
        time.sleep(0.01)


def test_close_calls_off_a_waiting_pop(pop_service: ServiceProcess, topic: str) -> None:
    fill(pop_service.url, topic, 1)
    seen = Seen()
    consumer = PopConsumer(pop_service.url, "leaving", topic, seen, wait_ms=20_000)
    consumer.start()
    seen.wait_for(lambda messages: len(messages) == 1)
    wait_done(pop_service.url, "leaving")
    _until_waiting(pop_service.url, 1)
    assert consumer.close()
    # It would be there for 20 s.
    _until_waiting(pop_service.url, 0)


# With failures: at least once ----------------------------------------------------------------------------------


@pytest.mark.promise("SDK-5")
def test_pop_14_a_service_that_is_killed_loses_no_message(small_times: Path, topic: str) -> None:
    service = ServiceProcess(small_times / f"{topic}-warehouse")
    try:
        fill(service.url, topic, 2_000)
        seen = Seen()
        consumers = [PopConsumer(service.url, "billing", topic, seen, patience=QUICK) for _ in range(2)]
        for consumer in consumers:
            consumer.start()
        for share in (300, 900):
            seen.wait_for(has_more_than(share))
            service.kill()
            service.start()
        seen.wait_for(lambda messages: len({message.body for message in messages}) == 2_000)
        wait_done(service.url, "billing")
        for consumer in consumers:
            consumer.close()
        assert set(seen.numbers) == set(range(2_000))
        assert all(consumer.error is None for consumer in consumers)
    finally:
        service.close()


# The command line ----------------------------------------------------------------------------------------------


@pytest.mark.promise("SDK-4")
@pytest.mark.parametrize("order", [pytest.param(True, marks=pytest.mark.long), "key"])
@pytest.mark.static_too(always=True)
def test_pop_20_lost_answers_hold_no_partition(pop_service: ServiceProcess, topic: str, order: Any) -> None:
    """A lease lasts for longer than the test may: each message comes once, and what was lost at once again."""
    fill(pop_service.url, topic, 200, partitions=2)
    group = f"lossy-{topic}"
    seen = Seen()
    with ChaosProxy(int(pop_service.url.rpartition(":")[2]), loss=0.1, seed=7) as proxy:
        options = {"order": order, "invisible_ms": 3_600_000, "max_messages": 8, "patience": QUICK}
        with PopConsumer(proxy.url, group, topic, seen, **options) as consumer:
            seen.wait_for(lambda messages: len({message.body for message in messages}) == 200)
            wait_done(pop_service.url, group)
        stats = consumer.stats()
    assert sorted(seen.numbers) == list(range(200)) and stats.failed_pops > 0
    for key in range(50):
        assert [n for n in seen.numbers if n % 50 == key] == list(range(key, 200, 50))


def test_consume_for_a_group_on_the_command_line(pop_service: ServiceProcess, topic: str) -> None:
    fill(pop_service.url, topic, 1_000)
    command = [*DELTAMQ, "consume", topic, "--group", "lines", "--json", "--url", pop_service.url]
    some = subprocess.run([*command, "--max", "300"], capture_output=True, text=True, timeout=60, check=True)
    with subprocess.Popen([*command, "--follow"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(700)]
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, "")
    bodies = [int(json.loads(line)["body"]) for line in [*some.stdout.splitlines(), *lines]]
    assert sorted(bodies) == list(range(1_000))
    wait_done(pop_service.url, "lines")
    show = [*DELTAMQ, "group", "show", "lines", "--url", pop_service.url]
    shown = subprocess.run(show, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "lag 0" in shown


# With the revive job -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs(pop_service: ServiceProcess, small_times: Path) -> Iterator[None]:
    """`deltamq jobs run revive delay` beside the service."""
    command = [
        *DELTAMQ,
        "jobs",
        "run",
        "revive",
        "delay",
        "--engine",
        "local",
        "--warehouse",
        str(pop_service.warehouse),
    ]
    with open(small_times / "jobs.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        yield
        process.terminate()
        assert process.wait(timeout=60) == 0, (small_times / "jobs.log").read_text(errors="replace")[-2_000:]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("jobs")
class TestWithJobs:
    """What is delivered again comes through the revive job, what is delayed through the delay job."""

    def test_retry_01_failed_messages_come_again_and_die(self, pop_service: ServiceProcess, topic: str) -> None:
        fill(pop_service.url, topic, 40)
        group = f"retrying-{topic}"
        with Admin(pop_service.url) as admin:
            admin.create_group(group, max_attempts=3, retry_policy={"fixed_ms": 100})
            seen = Seen()

            def handle(message: PoppedMessage) -> Result:
                seen(message)
                number = int(message.body)
                if number == 7:
                    raise ValueError("never")
                if number == 8:
                    return Result.DEAD("no such customer")
                return Result.RETRY if number % 10 == 0 and message.delivery_attempt == 1 else Result.OK

            with PopConsumer(pop_service.url, group, topic, handle):
                seen.wait_for(lambda messages: len(messages) >= 40 + 4 + 2, 120)
                deadline = time.monotonic() + 60
                pause = threading.Event()
                while admin.dead_letters(group).total < 2:
                    assert time.monotonic() < deadline
                    pause.wait(0.1)
            attempts = Counter(seen.numbers)
            assert {n for n, count in attempts.items() if count == 2} == {0, 10, 20, 30}
            assert attempts[7] == 3
            assert sum(attempts.values()) == 40 + 4 + 2
            reasons = {
                letter.payload: (letter.reason, letter.attempts) for letter in admin.dead_letters(group).messages
            }
            assert reasons == {b"7": ("max_attempts", 3), b"8": ("no such customer", 1)}
            assert admin.replay_dead_letters(group, to="retry").replayed == 2
            again = Seen()
            with PopConsumer(pop_service.url, group, topic, again):
                again.wait_for(lambda messages: len(messages) == 2, 60)
            assert sorted(again.numbers) == [7, 8]
            wait_done(pop_service.url, group)

    def test_pop_03_what_a_dead_consumer_held_goes_to_another(self, pop_service: ServiceProcess, topic: str) -> None:
        fill(pop_service.url, topic, 20)
        group = f"dying-{topic}"
        # A consumer that prints and is killed: what it held comes when its invisible time ends.
        command = [*DELTAMQ, "consume", topic, "--group", group, "--follow", "--invisible-ms", "1500"]
        with subprocess.Popen([*command, "--url", pop_service.url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(20):
                process.stdout.readline()
            process.kill()
            process.wait(timeout=30)
        seen = Seen()
        with PopConsumer(pop_service.url, group, topic, seen), Producer(pop_service.url) as producer:
            producer.send(topic, "20")
            seen.wait_for(lambda messages: any(message.body == b"20" for message in messages), 60)
            wait_done(pop_service.url, group)
        # Printed lines may have been acknowledged already, or come again: none is lost, none comes without an expiry.
        assert set(seen.numbers) <= set(range(21))
        assert {m.delivery_attempt for m in seen.messages if m.body != b"20"} <= {2}

    @pytest.mark.promise("SDK-4")
    def test_lost_answers_lose_no_message(self, pop_service: ServiceProcess, topic: str) -> None:
        fill(pop_service.url, topic, 400)
        group = f"lossy-{topic}"
        seen = Seen()
        with ChaosProxy(int(pop_service.url.rpartition(":")[2]), loss=0.1, seed=7) as proxy:
            with PopConsumer(proxy.url, group, topic, seen, invisible_ms=1_500, patience=QUICK) as consumer:
                seen.wait_for(lambda messages: len({message.body for message in messages}) == 400)
                wait_done(pop_service.url, group)
            stats = consumer.stats()
        assert set(seen.numbers) == set(range(400))
        assert stats.failed_pops > 0

    def test_close_returns_messages_to_others_at_once(self, pop_service: ServiceProcess, topic: str) -> None:
        fill(pop_service.url, topic, 10)
        group = f"closing-{topic}"
        stuck = threading.Event()
        begun = Seen()

        def hold(message: PoppedMessage) -> None:
            begun(message)
            stuck.wait(60)

        consumer = PopConsumer(pop_service.url, group, topic, hold, concurrency=2, prefetch=8, invisible_ms=600_000)
        consumer.start()
        begun.wait_for(lambda messages: len(messages) == 2 and consumer.stats().held == 10)
        closed = consumer.close(timeout_s=0.1)
        assert closed.unfinished == 2
        seen = Seen()
        with PopConsumer(pop_service.url, group, topic, seen):
            # Long before ten minutes are over.
            seen.wait_for(lambda messages: len(messages) == 10, 60)
            wait_done(pop_service.url, group)
        stuck.set()
        assert sorted(seen.numbers) == list(range(10))

    @pytest.mark.promise("SDK-3")
    def test_pop_09_a_slow_handler_keeps_its_message(self, pop_service: ServiceProcess, topic: str) -> None:
        fill(pop_service.url, topic, 4)
        group = f"slow-{topic}"
        seen = Seen()
        release = threading.Event()

        def slow(message: PoppedMessage) -> None:
            seen(message)
            release.wait(60)

        with PopConsumer(pop_service.url, group, topic, slow, invisible_ms=6_000) as consumer:
            pause = threading.Event()
            deadline = time.monotonic() + 60
            while consumer.stats().renewals < 8:
                assert time.monotonic() < deadline
                pause.wait(0.05)
            release.set()
            wait_done(pop_service.url, group)
            assert consumer.stats().expired == 0
        assert sorted(seen.numbers) == [0, 1, 2, 3]

    def test_retry_04_a_delayed_message_comes_when_it_is_due(self, pop_service: ServiceProcess, topic: str) -> None:
        fill(pop_service.url, topic, 1)
        group = f"delayed-{topic}"
        seen = Seen()
        with (
            PopConsumer(pop_service.url, group, topic, seen),
            Producer(pop_service.url) as producer,
            Admin(pop_service.url) as admin,
        ):
            producer.send(topic, "1", delay_ms=1_500)
            producer.send(topic, "2", delay_ms=600_000, message_id="taken-back")
            admin.cancel_message(topic, "taken-back")
            sent = time.time()
            seen.wait_for(lambda messages: len(messages) == 2, 60)
            assert time.time() - sent >= 1.0
            wait_done(pop_service.url, group)
        assert sorted(seen.numbers) == [0, 1]
