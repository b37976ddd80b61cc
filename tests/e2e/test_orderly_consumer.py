"""Ordered consumers with real service processes: order, verdicts, handovers, and processes that die or stand still."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from deltamq import Admin, OrderlyConsumer, Producer, Verdict
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import OrderedMessage
from tests.e2e.as_static import create
from tests.e2e.orderly_process import Heard, OrderlyProcess, heard_in, journal_to
from tests.e2e.service_process import ServiceProcess
from tests.forked import until

KEYS = 24
QUICK = Patience(first_wait_ms=20, wait_ms_max=200, timeout_s=60)
#: The longest stop of a partition at a handover without a failure, on a machine that others use, too.
PAUSE_S_MAX = 3.0

Spawn = Callable[..., OrderlyProcess]


class Feed:
    """Numbers for each key, one after another, until it is stopped."""

    def __init__(self, url: str | Sequence[str], topic: str) -> None:
        self._producer = Producer(url, first_wait_ms=20, wait_ms_max=200, timeout_s=60)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: dict[str, int] = defaultdict(int)
        self.error: Exception | None = None

    def start(self) -> Feed:
        self._thread.start()
        return self

    def _run(self) -> None:
        at = 0
        try:
            while not self._stop.is_set():
                key = f"k{at % KEYS}"
                self._producer.send(self._topic, str(self.sent[key]), key=key)
                self.sent[key] += 1
                at += 1
        except Exception as error:
            self.error = error

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def has_sent(self, count: int) -> bool:
        return self.total > count

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(timeout=90)
        self._producer.close()
        if self.error is not None:
            raise self.error
        return self.total


@pytest.fixture
def feed() -> Iterator[Callable[..., Feed]]:
    made: list[Feed] = []

    def make(url: str | Sequence[str], topic: str) -> Feed:
        made.append(Feed(url, topic).start())
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    made: list[OrderlyProcess] = []

    def make(url: str, topic: str, client: str, **settings: int) -> OrderlyProcess:
        made.append(OrderlyProcess(url, "ledger", topic, client, tmp_path / f"{client}.journal", **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases and authorizations of seconds; relations as by default."""
    for name, value in {
        "LEASE_MS": "2000",
        "LEASE_RENEW_MS": "500",
        "LEASE_MARGIN_MS": "300",
        "AUTHORIZATION_MS": "4000",
    }.items():
        monkeypatch.setenv(f"DELTAMQ_SERVICE_{name}", value)


def make_topic(url: str, topic: str, *, partitions: int = 4, strict: bool = True) -> None:
    with Admin(url, patience=QUICK) as admin:
        admin.create_group("ledger", consume_strategy="exclusive")
        create(admin, topic, partitions, order_strategy="strict" if strict else "best_tried")


def check_order(heard: Sequence[Heard], *, repeats: bool) -> None:
    """Per key nothing is skipped or overtakes, and no partition is heard by two at once (SPEC ORDER-6, ORDER-7)."""
    reached: dict[str, int] = defaultdict(lambda: -1)
    busy_until: dict[str, tuple[int, Heard]] = {}
    for one in heard:
        assert one.number <= reached[one.key] + 1, f"{one} comes before {reached[one.key] + 1} of its key"
        if not repeats:
            assert one.number == reached[one.key] + 1, f"{one} was heard before"
        reached[one.key] = max(reached[one.key], one.number)
        before = busy_until.get(one.partition)
        assert before is None or before[0] <= one.began_ns, f"{one} began while {before[1]} was heard"
        busy_until[one.partition] = (one.ended_ns, one)


def keys_heard(*paths: Path) -> dict[str, int]:
    """How far each key is."""
    done: dict[str, int] = defaultdict(int)
    for one in heard_in(*paths):
        done[one.key] = max(done[one.key], one.number + 1)
    return done


def is_over(worker: OrderlyProcess, count: int) -> bool:
    """Whether it died, or was through with so many messages."""
    return not worker.is_running or len({one.number for one in worker.heard()}) == count


def all_have_some(clients: Sequence[OrderlyConsumer]) -> bool:
    return all(client.partitions() for client in clients)


def pauses_s(heard: Sequence[Heard]) -> list[float]:
    """How long each partition stood still when it went from one client to another."""
    last: dict[str, Heard] = {}
    found = []
    for one in heard:
        before = last.get(one.partition)
        if before is not None and before.client != one.client:
            found.append((one.began_ns - before.ended_ns) / 1e9)
        last[one.partition] = one
    return found


@pytest.mark.promise("LOCK-9")
@pytest.mark.static_too
def test_order_05_clients_come_and_go_and_every_key_is_heard_in_order_without_a_repeated_message(
    service: ServiceProcess, topic: str, tmp_path: Path, feed: Callable[..., Feed]
) -> None:
    make_topic(service.url, topic)
    feeding = feed(service.url, topic)
    journals = [tmp_path / f"{name}.journal" for name in "abc"]
    clients = [
        OrderlyConsumer(service.url, "ledger", topic, journal_to(path, path.stem, 1), client_id=path.stem)
        for path in journals
    ]
    for at, client in enumerate(clients):
        client.start()
        until(partial(all_have_some, clients[: at + 1]))
        until(partial(heard_in, journals[at]))
    counts = sorted(len(client.partitions()) for client in clients)
    assert counts == [1, 1, 2], "4 partitions are spread evenly (ORDER-1)"
    assert clients[0].close(), "everything was handed over"
    until(lambda: sum(len(client.partitions()) for client in clients[1:]) == 4)
    until(lambda: len({one.partition for one in heard_in(*journals[1:])}) == 4)
    total = feeding.stop()
    until(lambda: len(heard_in(*journals)) >= total)
    assert all(client.close() for client in clients)
    heard = heard_in(*journals)
    check_order(heard, repeats=False)
    assert keys_heard(*journals) == feeding.sent
    moved = pauses_s(heard)
    assert len(moved) >= 3, "partitions went from client to client"
    assert max(moved) < PAUSE_S_MAX, f"pauses of {sorted(round(one, 3) for one in moved)} s"


@pytest.mark.static_too
def test_order_07_a_suspended_message_of_a_strict_topic_is_heard_again_and_stops_only_its_partition(
    service: ServiceProcess, topic: str
) -> None:
    make_topic(service.url, topic, partitions=2)
    with Producer(service.url) as producer:
        for number in range(6):
            for at in (0, 1):
                producer.send(topic, str(number), partition=producer.partitions(topic)[at])
        stuck, free = producer.partitions(topic)
    heard: list[tuple[str, int, int]] = []

    def listen(message: OrderedMessage) -> Verdict:
        heard.append((message.partition, int(message.text), message.attempt))
        over = message.partition == free or message.text != "2" or message.attempt == 20
        return Verdict.SUCCESS if over else Verdict.SUSPEND

    with OrderlyConsumer(service.url, "ledger", topic, listen, suspend_ms=20):
        until(lambda: len(heard) == 12 + 19)
    assert [number for partition, number, _ in heard if partition == free] == list(range(6))
    wanted = [(0, 1), (1, 1), *((2, attempt) for attempt in range(1, 21)), (3, 1), (4, 1), (5, 1)]
    assert [(number, attempt) for partition, number, attempt in heard if partition == stuck] == wanted
    with Admin(service.url) as admin:
        assert admin.dead_letters("ledger").total == 0


def _fill(service: ServiceProcess, topic: str, count: int) -> None:
    """A topic of one partition, not strict, with messages 0, 1, ... of one key."""
    make_topic(service.url, topic, partitions=1, strict=False)
    with Producer(service.url) as producer:
        for number in range(count):
            producer.send(topic, str(number), key="k")


def test_order_08_a_message_that_fails_for_good_is_a_dead_letter_and_the_partition_moves_on(
    service: ServiceProcess, topic: str
) -> None:
    _fill(service, topic, 4)
    heard: list[str] = []

    def listen(message: OrderedMessage) -> Verdict:
        heard.append(message.text)
        if message.text == "3":
            return Verdict.DEAD
        return Verdict.SUSPEND if message.text == "1" else Verdict.SUCCESS

    with (
        OrderlyConsumer(service.url, "ledger", topic, listen, suspend_ms=10, max_attempts=3),
        Admin(service.url) as admin,
    ):
        until(lambda: admin.dead_letters("ledger").total == 2)
    assert heard == ["0", "1", "1", "1", "2", "3"]
    with Admin(service.url) as admin:
        dead = admin.dead_letters("ledger").messages
        assert [(one.body, one.reason, one.attempts) for one in dead] == [
            ("1", "max_attempts", 3),
            ("3", "rejected by its listener", 1),
        ]
        assert dead[0].origin is not None and dead[0].origin.offset == 1
        partition = admin.get_topic(topic).partitions[0].partition
        assert admin.group_offsets("ledger", topic) == {partition: 4}


@pytest.mark.promise("LOCK-14")
@pytest.mark.static_too
def test_order_08_a_message_that_kills_its_clients_is_a_dead_letter_at_last(
    service: ServiceProcess, topic: str, spawn: Spawn
) -> None:
    with Admin(service.url) as admin:
        admin.create_group("ledger", consume_strategy="exclusive", max_attempts=3)
    _fill(service, topic, 40)
    # It begins anew at once, as a supervisor lets it, under the name that it had. It works quicker than it commits.
    lives = 0
    while True:
        worker = spawn(service.url, topic, "one", deadly=25)
        lives += 1
        until(partial(is_over, worker, 40))
        if worker.is_running:
            break
        assert lives < 20, "it kills for ever"
    assert worker.stop() == 0
    with Admin(service.url) as admin:
        (letter,) = admin.dead_letters("ledger").messages
        assert (letter.body, letter.reason) == ("25", "max_attempts") and letter.attempts >= 3
    deaths = [one for one in worker.heard() if one.number == 25]
    assert len(deaths) == lives - 1 >= 3 and not any(one.ended_ns for one in deaths)
    ended = [one.number for one in worker.heard() if one.ended_ns]
    assert sorted(set(ended)) == [*range(25), *range(26, 40)]
    assert ended[-14:] == list(range(26, 40)), "what follows was heard once, after it was set aside"


@pytest.mark.static_too(always=True)
def test_order_08_best_tried_order_lets_a_failure_go_and_hears_it_again_later(
    service: ServiceProcess, topic: str
) -> None:
    _fill(service, topic, 4)
    heard: list[tuple[str, int]] = []

    def listen(message: OrderedMessage) -> Verdict:
        heard.append((message.text, message.attempt))
        return Verdict.SUSPEND if message.text == "1" and message.attempt == 1 else Verdict.SUCCESS

    with OrderlyConsumer(service.url, "ledger", topic, listen, on_failure="retry_topic"):
        until(lambda: len(heard) == 5)
    assert [one for one in heard if one[0] != "1"] == [("0", 1), ("2", 1), ("3", 1)]
    assert [attempt for text, attempt in heard if text == "1"] == [1, 2]


@pytest.mark.promise("LOCK-16")
@pytest.mark.static_too
def test_retry_03_a_dead_letter_that_is_sent_to_the_retries_is_heard_again(service: ServiceProcess, topic: str) -> None:
    _fill(service, topic, 3)
    heard: list[str] = []

    def listen(message: OrderedMessage) -> Verdict:
        heard.append(message.text)
        return Verdict.DEAD if heard == ["0", "1"] else Verdict.SUCCESS

    with OrderlyConsumer(service.url, "ledger", topic, listen), Admin(service.url) as admin:
        until(lambda: heard == ["0", "1", "2"])
        (letter,) = [one for one in admin.dead_letters("ledger").messages if one.origin and one.origin.topic == topic]
        chosen = {letter.partition: [letter.offset]}
        assert admin.replay_dead_letters("ledger", offsets=chosen, to="retry").replayed == 1
        until(lambda: heard == ["0", "1", "2", "1"])


@pytest.mark.promise("LOCK-11")
def test_order_03_the_partitions_of_a_killed_client_go_to_others_when_its_authorization_is_over(
    short_lives: None, tmp_path: Path, topic: str, spawn: Spawn, feed: Callable[..., Feed]
) -> None:
    service = ServiceProcess(tmp_path / "warehouse")
    try:
        make_topic(service.url, topic)
        feeding = feed(service.url, topic)
        one = spawn(service.url, topic, "one")
        until(lambda: len(one.heard()) > 50)
        other = spawn(service.url, topic, "two")
        until(lambda: len(other.heard()) > 50)
        one.kill()
        until(lambda: {heard.partition for heard in other.heard()} >= {heard.partition for heard in one.heard()})
        feeding.stop()
        until(lambda: keys_heard(one.journal, other.journal) == feeding.sent)
        assert other.stop() == 0
        check_order(heard_in(one.journal, other.journal), repeats=True)
    finally:
        service.close()


@pytest.mark.promise("LOCK-10")
@pytest.mark.long
def test_order_03_a_client_that_stood_still_stops_before_it_goes_on_and_commits_nothing(
    short_lives: None, tmp_path: Path, topic: str, spawn: Spawn, feed: Callable[..., Feed]
) -> None:
    service = ServiceProcess(tmp_path / "warehouse")
    try:
        make_topic(service.url, topic, partitions=1)
        feeding = feed(service.url, topic)
        one = spawn(service.url, topic, "one", work_ms=5)
        until(lambda: len(one.heard()) > 20)
        other = spawn(service.url, topic, "two", work_ms=5)
        one.pause()
        until(lambda: len(other.heard()) > 20)
        one.resume()
        until(lambda: len(other.heard()) > 60)
        feeding.stop()
        until(lambda: keys_heard(one.journal, other.journal) == feeding.sent)
        assert one.stop() == 0
        assert other.stop() == 0
        first = other.heard()[0]
        assert [late for late in one.heard() if late.began_ns >= first.began_ns] == []
        offsets = [late.offset for late in other.heard()]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), (
            "the other goes on where one had committed"
        )
        assert offsets[0] <= len(one.heard())
    finally:
        service.close()


@pytest.mark.promise("LOCK-12")
@pytest.mark.static_too
def test_order_04_a_consumer_goes_on_when_its_broker_was_killed_and_came_back(
    short_lives: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    topic: str,
    spawn: Spawn,
    feed: Callable[..., Feed],
) -> None:
    # Longer than a restart: the client's right outlives it.
    monkeypatch.setenv("DELTAMQ_SERVICE_AUTHORIZATION_MS", "30000")
    service = ServiceProcess(tmp_path / "warehouse")
    try:
        make_topic(service.url, topic)
        feeding = feed(service.url, topic)
        one = spawn(service.url, topic, "one")
        until(lambda: len(one.heard()) > 50)
        service.kill()
        service.start()
        seen = len(one.heard())
        until(lambda: len(one.heard()) > seen + 50)
        feeding.stop()
        until(lambda: keys_heard(one.journal) == feeding.sent)
        assert one.stop() == 0
        check_order(one.heard(), repeats=False)
    finally:
        service.close()


@pytest.mark.promise("LOCK-12")
@pytest.mark.long
def test_meta_01_a_killed_process_is_taken_over_and_every_key_goes_on_in_order(
    short_lives: None, tmp_path: Path, topic: str, feed: Callable[..., Feed]
) -> None:
    services = [ServiceProcess(tmp_path / "warehouse", "--broker", name) for name in ("broker-a", "broker-b")]
    journals = [tmp_path / f"{name}.journal" for name in "ab"]
    clients: list[OrderlyConsumer] = []
    try:
        make_topic(services[0].url, topic)
        urls = [service.url for service in services]
        feeding = feed(urls, topic)
        for path in journals:
            listener = journal_to(path, path.stem, 1)
            # Each knows one process only; it learns of the others.
            client = OrderlyConsumer(urls[0], "ledger", topic, listener, client_id=path.stem, patience=QUICK)
            client.start()
            clients.append(client)
        until(lambda: len({one.partition for one in heard_in(*journals)}) == 4)
        until(lambda: sorted(len(client.partitions()) for client in clients) == [2, 2])
        seen = len(heard_in(*journals))
        services[0].kill()
        killed_ns = time.monotonic_ns()
        until(lambda: len({one.partition for one in heard_in(*journals) if one.began_ns > killed_ns}) == 4, 60)
        until(lambda: len(heard_in(*journals)) > seen + 200)
        feeding.stop()
        until(lambda: keys_heard(*journals) == feeding.sent)
        assert all(client.close() for client in clients)
        check_order(heard_in(*journals), repeats=False)
    finally:
        for client in clients:
            client.close(timeout_s=1)
        for service in services:
            service.close()


@pytest.mark.long
def test_route_06_an_expansion_of_a_strict_topic_under_load_keeps_every_key_in_order(
    service: ServiceProcess, topic: str, tmp_path: Path, feed: Callable[..., Feed]
) -> None:
    make_topic(service.url, topic, partitions=2)
    feeding = feed(service.url, topic)
    journals = [tmp_path / f"{name}.journal" for name in "ab"]
    clients = [
        OrderlyConsumer(service.url, "ledger", topic, journal_to(path, path.stem, 1), client_id=path.stem)
        for path in journals
    ]
    for client in clients:
        client.start()
    until(lambda: all(heard_in(path) for path in journals))
    with Admin(service.url, patience=QUICK) as admin:
        for count in (5, 8):
            total = feeding.total
            route = admin.create_topic(topic, partitions=count)
            assert len(route.partitions) == count
            until(partial(feeding.has_sent, total + 200))
    until(lambda: sorted(len(client.partitions()) for client in clients) == [4, 4])
    total = feeding.stop()
    until(lambda: len(heard_in(*journals)) >= total, 60)
    assert all(client.close() for client in clients)
    heard = heard_in(*journals)
    check_order(heard, repeats=False)
    assert keys_heard(*journals) == feeding.sent
    moved = {one.key for one in heard if len({other.partition for other in heard if other.key == one.key}) > 1}
    assert moved, "some keys went to new partitions"


def check_keys(heard: Sequence[Heard], *, repeats: bool) -> None:
    """Per key nothing is skipped, overtakes, or is heard by two at once (SPEC ORDER-11)."""
    reached: dict[str, int] = defaultdict(lambda: -1)
    busy_until: dict[str, int] = defaultdict(int)
    for one in heard:
        assert one.number <= reached[one.key] + 1, f"{one} comes before {reached[one.key] + 1} of its key"
        assert repeats or one.number == reached[one.key] + 1, f"{one} was heard before"
        assert busy_until[one.key] <= one.began_ns, f"{one} began while its key was heard"
        reached[one.key] = max(reached[one.key], one.number)
        busy_until[one.key] = one.ended_ns


def most_at_once(heard: Sequence[Heard]) -> int:
    """How many messages of one partition were heard at the same time."""
    return max(
        sum(other.partition == one.partition and other.began_ns <= one.began_ns < other.ended_ns for other in heard)
        for one in heard
    )


@pytest.mark.static_too
@pytest.mark.long
def test_order_11_clients_come_and_go_and_keys_heard_in_parallel_keep_their_order_without_a_repeated_message(
    service: ServiceProcess, topic: str, tmp_path: Path, feed: Callable[..., Feed]
) -> None:
    make_topic(service.url, topic, partitions=2)
    feeding = feed(service.url, topic)
    journals = [tmp_path / f"{name}.journal" for name in "abc"]
    clients = [
        OrderlyConsumer(
            service.url, "ledger", topic, journal_to(path, path.stem, 5), client_id=path.stem, keys_in_parallel=4
        )
        for path in journals
    ]
    clients[0].start()
    until(lambda: len(heard_in(journals[0])) > 100)
    clients[1].start()
    until(partial(all_have_some, clients[:2]))
    until(lambda: len(heard_in(journals[1])) > 100)
    clients[2].start()
    assert clients[0].close(), "everything was handed over"
    until(lambda: len(heard_in(journals[2])) > 100)
    total = feeding.stop()
    until(lambda: len(heard_in(*journals)) >= total)
    assert all(client.close() for client in clients)
    heard = heard_in(*journals)
    check_keys(heard, repeats=False)
    assert keys_heard(*journals) == feeding.sent
    assert 2 <= most_at_once(heard) <= 4


@pytest.mark.long
def test_order_11_after_a_crash_keys_heard_in_parallel_go_on_and_nothing_is_lost(
    short_lives: None, tmp_path: Path, topic: str, spawn: Spawn, feed: Callable[..., Feed]
) -> None:
    service = ServiceProcess(tmp_path / "warehouse")
    try:
        make_topic(service.url, topic, partitions=1)
        feeding = feed(service.url, topic)
        one = spawn(service.url, topic, "one", work_ms=5, keys_in_parallel=4)
        until(lambda: len(one.heard()) > 100)
        one.kill()
        other = spawn(service.url, topic, "two", keys_in_parallel=4)
        until(lambda: len(other.heard()) > 100)
        feeding.stop()
        until(lambda: keys_heard(one.journal, other.journal) == feeding.sent)
        assert other.stop() == 0
        ended = [heard for heard in one.heard() if heard.ended_ns]
        check_keys(ended, repeats=False)
        check_keys([*ended, *other.heard()], repeats=True)
        assert most_at_once(ended) > 1
    finally:
        service.close()


@pytest.mark.long
def test_order_11_a_message_that_kills_its_clients_is_a_dead_letter_at_last_and_no_other_is(
    service: ServiceProcess, topic: str, spawn: Spawn
) -> None:
    with Admin(service.url) as admin:
        admin.create_group("ledger", consume_strategy="exclusive", max_attempts=3)
    make_topic(service.url, topic, partitions=1, strict=False)
    with Producer(service.url) as producer:
        for number in range(40):
            producer.send(topic, str(number), key=f"k{number % 5}")
    lives = 0
    while True:
        worker = spawn(service.url, topic, "one", deadly=25, keys_in_parallel=4)
        lives += 1
        until(partial(is_over, worker, 40))
        if worker.is_running:
            break
        assert lives < 20, "it kills for ever"
    assert worker.stop() == 0
    with Admin(service.url) as admin:
        (letter,) = admin.dead_letters("ledger").messages
        assert (letter.body, letter.reason) == ("25", "max_attempts")
    assert {one.number for one in worker.heard() if one.ended_ns} == {*range(25), *range(26, 40)}


@pytest.mark.static_too
def test_cons_08_what_a_killed_client_had_not_committed_is_heard_again(
    short_lives: None, tmp_path: Path, topic: str, spawn: Spawn
) -> None:
    service = ServiceProcess(tmp_path / "warehouse")
    try:
        _fill(service, topic, 30)
        one = spawn(service.url, topic, "one", commit_each=10, deadly=25)
        until(lambda: not one.is_running)
        other = spawn(service.url, topic, "two", commit_each=10)
        until(lambda: 29 in [heard.number for heard in other.heard()])
        assert other.stop() == 0
        begin = other.heard()[0].number
        assert begin in (0, 10, 20), "at a commit of the listener's"
        assert [heard.number for heard in other.heard()] == list(range(begin, 30))
        with Admin(service.url) as admin:
            assert list(admin.group_offsets("ledger", topic).values()) == [30]
    finally:
        service.close()
