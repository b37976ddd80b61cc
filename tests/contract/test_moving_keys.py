"""ROUTE-6 on real tables: processes with old views append, expand, fence, seal and consume in any interleaving.

Every process has its own way to the tables and its own view of the metadata, which is old until it looks. Each step of
an append, a seal or a kill between two of them is a move of its own. A producer sends the next message of a key when it
has the answer for the one before; a group consumes what its process lets it have. What must come out of any order of
moves: each key in order, nothing lost, nothing twice, and everything consumed in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from deltamq.api.host.fences import passes
from deltamq.mq.errors import Fenced
from deltamq.mq.meta.brokers import Host, decide_register, decide_takeover
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.moved_keys import decide_seal, first_blocked, moves_of
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic, decide_put_topic
from deltamq.mq.names import broker_of
from deltamq.mq.partitioners import logical_partition
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.fences import BROKER_FENCE, ROUTE_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.placement import Placement
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import all_rows
from tests.set_clock import SetClock

TOPIC: Final = "orders"
BROKERS: Final = ("a", "b")
KEYS: Final = tuple(f"k{number}" for number in range(6))
LPS: Final = {key: logical_partition(key) for key in KEYS}
PROCESSES: Final = 3
WHO: Final = st.integers(0, PROCESSES - 1)
_ROWS: Final = pa.schema([("key", pa.string()), ("body", pa.binary())])


@dataclass
class Sending:
    """A message under way: where its process sends it, by the view that it had then."""

    who: int
    number: int
    partition: str
    known: dict[str, int]
    #: It is stored, and the client that sent it was not told.
    lost: bool = False


class Process:
    """One process: it knows what it has looked at."""

    def __init__(self, files: MemoryStore, clock: SetClock) -> None:
        # It does not look ahead by itself: that would hide what old views can do.
        self.warehouse = Warehouse.open("", store=FaultyStore(files, cheap_look=False), clock=clock)
        self.log = MetaLog(self.warehouse)
        self.meta: Meta = self.log.meta

    def look(self) -> None:
        self.log.refresh()
        self.meta = self.log.meta

    @property
    def topic(self) -> Topic:
        return self.meta.topics.topic(TOPIC)

    def placement(self) -> Placement:
        return Placement.of(self.topic, self.meta)

    def partition(self, name: str) -> PartitionLog:
        return self.warehouse.create(PartitionRef(Space.TOPICS, TOPIC, name))


class MovingKeys(RuleBasedStateMachine):
    """`sent` is what producers have answers for; `got` what the group has had, by key."""

    @initialize()
    def start(self) -> None:
        self.files, clock = MemoryStore(), SetClock()
        first = Process(self.files, clock)
        host = Host(id="host-0", address="", brokers=BROKERS, renewal=0, load=0)
        first.log.submit_any(lambda meta: decide_register(meta.brokers, host))
        request = TopicRequest(partitions=2, order_strategy="strict")
        first.log.submit_any(lambda meta: decide_put_topic(meta.topics, TOPIC, request, BROKERS, "id-1", 0))
        self.processes = [first, *(Process(self.files, clock) for _ in range(PROCESSES - 1))]
        for process in self.processes:
            process.look()
        self.owner, self.hosts = "host-0", 1
        self.sending: dict[str, Sending] = {}
        self.sent = dict.fromkeys(KEYS, 0)
        self.stored: dict[tuple[str, int], tuple[str, int]] = {}
        self.got: dict[str, list[int]] = {key: [] for key in KEYS}
        self.positions: dict[str, int] = {}
        self.fenced: list[tuple[str, int, int]] = []

    # Producers.

    @rule(who=WHO, key=st.sampled_from(KEYS))
    def begin_to_send(self, who: int, key: str) -> None:
        if key in self.sending:
            return
        self._place(who, key, self.sent[key])

    def _place(self, who: int, key: str, number: int) -> None:
        placement = self.processes[who].placement()
        partition = placement.partitions[placement.table[LPS[key]]]
        self.sending[key] = Sending(who, number, partition, dict(placement.fence_epochs[partition]))

    @rule(who=WHO)
    def talk(self, who: int) -> None:
        """A message of each key through one process, whatever it has seen; clients hang up on every second."""
        for at, key in enumerate(KEYS):
            if key not in self.sending:
                self._place(who, key, self.sent[key])
                self._append(key, loses_answer=at % 2 == 1)

    @rule(key=st.sampled_from(KEYS), loses_answer=st.booleans())
    def append(self, key: str, loses_answer: bool) -> None:
        """The append of a message that was placed a while ago."""
        if key in self.sending and not self.sending[key].lost:
            self._append(key, loses_answer=loses_answer)

    @rule(who=WHO)
    def ask_again(self, who: int) -> None:
        """Clients that had no answer ask another process."""
        for key in [key for key, one in self.sending.items() if one.lost]:
            self._again_elsewhere(who, key, self.sending[key].number)

    def _append(self, key: str, *, loses_answer: bool = False) -> None:
        one = self.sending[key]
        body = f"{key}:{one.number}".encode()
        rows = pa.RecordBatch.from_arrays([pa.array([key]), pa.array([body], pa.binary())], schema=_ROWS)
        stamp = ProducerStamp(key, one.number, None, 1)
        process = self.processes[one.who]
        try:
            found = process.partition(one.partition).append([Batch(rows, stamp)], fence_epochs=one.known)[0]
        except Fenced as error:
            process.look()
            placement = process.placement()
            partition = placement.partitions[placement.table[LPS[key]]]
            if passes(placement.fence_epochs[one.partition], error):
                self.sending[key] = Sending(one.who, one.number, partition, dict(placement.fence_epochs[partition]))
            return
        place = self.stored.setdefault((key, one.number), (one.partition, found.base_offset))
        assert place == (one.partition, found.base_offset), f"{body!r} is stored twice"
        one.lost = loses_answer
        if loses_answer:
            return
        del self.sending[key]
        self.sent[key] = one.number + 1

    def _again_elsewhere(self, who: int, key: str, number: int) -> None:
        """It looks where the keys came from, and answers if it finds the request; else it takes it as a new one."""
        process = self.processes[who]
        for source, end_offset in process.placement().ends.items():
            log = process.partition(source)
            if log.end_offset < end_offset:
                log.refresh()
        for name in process.placement().partitions:
            seen = process.partition(name).known_producer(key)
            if seen is not None and number in seen.parts:
                del self.sending[key]
                self.sent[key] = number + 1
                return
        self._place(who, key, number)

    # Administrators, and owners of brokers.

    @rule(who=WHO)
    def look(self, who: int) -> None:
        self.processes[who].look()

    @rule(who=WHO, more=st.integers(1, 3))
    def expand(self, who: int, more: int) -> None:
        process = self.processes[who]

        def decide(meta: Meta) -> list[AnyEvent]:
            count = min(9, len(meta.topics.topic(TOPIC).route.partitions) + more)
            events = decide_put_topic(meta.topics, TOPIC, TopicRequest(partitions=count), BROKERS, "no", 0)
            return [*moves_of(meta.topics, events), *events]

        process.log.submit_any(decide)
        process.meta = process.log.meta

    @rule(who=WHO, data=st.data())
    def fence(self, who: int, data: st.DataObject) -> None:
        """The first half of a seal; the process may be killed then."""
        process = self.processes[who]
        moved = process.meta.moved_keys("id-1")
        if moved.waiting:
            source = data.draw(st.sampled_from(sorted(moved.waiting)))
            epoch = moved.unsealed(source)[0]
            self.fenced.append((source, epoch, process.partition(source).fence(ROUTE_FENCE, epoch)))

    @rule(who=WHO)
    def seal_all(self, who: int) -> None:
        """Nobody is killed in between."""
        process = self.processes[who]
        process.look()
        for source in sorted(process.meta.moved_keys("id-1").waiting):
            epoch = process.meta.moved_keys("id-1").unsealed(source)[0]
            end_offset = process.partition(source).fence(ROUTE_FENCE, epoch)
            self._seal(process, source, epoch, end_offset)

    def _seal(self, process: Process, source: str, epoch: int, end_offset: int) -> None:
        process.log.submit_any(lambda meta: decide_seal(meta.moved_keys("id-1"), "id-1", source, epoch, end_offset))
        process.meta = process.log.meta

    @precondition(lambda self: self.fenced)
    @rule(who=WHO, data=st.data())
    def seal(self, who: int, data: st.DataObject) -> None:
        """The second half, perhaps long after, and not for the first time."""
        source, epoch, end_offset = data.draw(st.sampled_from(self.fenced))
        self._seal(self.processes[who], source, epoch, end_offset)

    @rule(who=WHO, fences=st.booleans())
    def take_over(self, who: int, fences: bool) -> None:
        """Another host takes the brokers, and keeps the one before from appending."""
        process = self.processes[who]
        self.hosts += 1
        new, old = f"host-{self.hosts}", self.owner
        host = Host(id=new, address="", brokers=(), renewal=0, load=0)
        process.log.submit_any(lambda meta: decide_register(meta.brokers, host))
        process.log.submit_any(lambda meta: decide_takeover(meta.brokers, new, {old: meta.brokers.hosts[old].renewal}))
        process.meta, self.owner = process.log.meta, new
        for partition in process.topic.route.partitions if fences else ():
            epoch = process.meta.brokers.roles[broker_of(partition)].epoch
            process.partition(partition).fence(BROKER_FENCE, epoch)

    # A group.

    @rule(who=WHO, backwards=st.booleans(), count=st.sampled_from([1, 3, 1_000]))
    def consume(self, who: int, backwards: bool, count: int) -> None:
        """What a process gives to the group of each partition is consumed and committed at once."""
        process = self.processes[who]
        for partition in process.topic.route.partitions[:: -1 if backwards else 1]:
            self._consume(process, partition, count)

    def _consume(self, process: Process, partition: str, count: int) -> int:
        log = process.partition(partition)
        log.refresh()
        at = self.positions.get(partition, 0)
        moved = process.meta.moved_keys("id-1")
        sources = {source: self.positions.get(source, 0) for source in moved.sources(partition)}
        rows = log.read(at, max_messages=count, max_bytes=1 << 20).rows
        keys: list[str] = rows.column("key").to_pylist()
        lps = np.array([LPS[key] for key in keys], dtype=np.int16)
        allowed = first_blocked(moved.blocked(partition, sources), lps)
        for body in rows.column("body").to_pylist()[:allowed]:
            key, _, number = body.decode().partition(":")
            self.got[key].append(int(number))
            assert self.got[key] == list(range(len(self.got[key]))), f"{key} came as {self.got[key]}"
        self.positions[partition] = at + allowed
        return allowed

    def teardown(self) -> None:
        """Everybody is alive again: what is under way is answered, what waits is sealed, and all of it consumed."""
        if not hasattr(self, "processes"):
            return
        last = self.processes[0]
        last.look()
        while last.meta.moved_keys("id-1").waiting:
            self.seal_all(0)
        while sum(self._consume(last, name, 1_000) for name in last.topic.route.partitions):
            pass
        logs = [last.partition(name) for name in last.topic.route.partitions]
        found = [body for log in logs for body in all_rows(log).column("body").to_pylist()]
        assert len(found) == len(set(found)), "a message is stored twice"
        assert sorted(found) == sorted(f"{key}:{n}".encode() for key, numbers in self.got.items() for n in numbers)
        for key, count in self.sent.items():
            assert len(self.got[key]) >= count, f"{key}: {count} were acknowledged, {self.got[key]} came"


def run_moving_keys(examples: int, steps: int = 50) -> None:
    """Play so many games."""
    chosen = settings(max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(MovingKeys, settings=chosen)


@pytest.mark.promise("LOG-6")
def test_route_06_keys_stay_in_order_whatever_old_views_do() -> None:
    run_moving_keys(5)


@pytest.mark.long
def test_route_06_keys_stay_in_order_in_many_games() -> None:
    run_moving_keys(100)


def test_send_05_a_request_without_an_answer_is_found_where_its_keys_were() -> None:
    """The process that is asked again has seen the old partition before the request, and the new route since."""
    game = MovingKeys()
    game.start()
    for process in game.processes:
        for name in process.topic.route.partitions:
            process.partition(name)
    game.talk(1)
    game.expand(0, 2)
    game.seal_all(0)
    game.look(2)
    asked = {key for key, one in game.sending.items() if one.lost}
    assert asked, "clients have hung up"
    assert any(game.processes[2].placement().table[LPS[key]] > 1 for key in asked), "and their keys have moved"
    game.ask_again(2)
    assert not asked & game.sending.keys(), "found, and so not sent again"
    game.teardown()


def test_route_06_who_missed_everything_is_stopped_by_the_fence() -> None:
    """A process that slept since before the expansion appends nothing behind the seal."""
    game = MovingKeys()
    game.start()
    game.talk(2)
    game.expand(0, 2)
    game.seal_all(0)
    for key in KEYS:
        game._place(2, key, game.sent[key])
    placed = {key: one.partition for key, one in game.sending.items()}
    for key in KEYS:
        game._append(key)
    moved = {key for key, one in game.sending.items() if one.partition != placed[key]}
    assert moved, "they were refused, and belong to other partitions now"
    for key in KEYS:
        if key in game.sending:
            game._append(key)
    assert not game.sending
    game.teardown()
