"""Several brokers, a meta role and exclusive clients under kills, pauses, wrong clocks and expansions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from deltamq.mq.limits import AUTHORIZATION_MS_DEFAULT, HEARTBEAT_MS, LEASE_MS_DEFAULT
from deltamq.mq.meta.moved_keys import decide_seal
from deltamq.mq.order.orderly import OnFailure, OrderlyRun, OrderlySettings, Right
from deltamq.mq.order.pull_lock import ClientLock
from tests.unit.mq.order.cluster_watcher import BROKERS, LPS, OWNED_WITHIN_MS, SLACK_MS, Watched, Watcher
from tests.unit.mq.order.memory_cluster import GROUP, TICK_MS, TOPIC, Clock, KeyedMessage, MemoryHost, lane_of

clocks = st.builds(Clock, st.integers(-(10**9), 10**9), st.sampled_from([0.98, 0.99, 1.0, 1.01, 1.02]))


class ClusterMachine(RuleBasedStateMachine):
    """Rules are what producers, administrators, clocks and deaths do."""

    @initialize(
        clocks=st.lists(clocks, min_size=8, max_size=8),
        partitions=st.integers(2, 3),
        work_ms=st.sampled_from([0, 0, 600, 4_000]),
    )
    def begin(self, clocks: list[Clock], partitions: int, work_ms: int) -> None:
        self.clocks = clocks
        self.work_ms = work_ms
        self.watcher = Watcher(partitions)
        self.names = 0
        self.watcher.host("one", "A", clock=clocks[0])
        self.watcher.host("two", "B", clock=clocks[1])
        self.come(2)
        self.watcher.run(3_000)

    @rule(count=st.integers(1, 2))
    def come(self, count: int) -> None:
        for _ in range(count):
            if sum(client.alive for client in self.watcher.watched) < 4:
                self.names += 1
                clock = self.clocks[2 + self.names % 6]
                self.watcher.client(f"c{self.names}", clock=clock, work_ms=self.work_ms)

    @rule(lps=st.lists(st.sampled_from(LPS), min_size=1, max_size=12))
    def produce(self, lps: list[int]) -> None:
        for lp in lps:
            self.watcher.try_send(lp)

    @rule(ms=st.sampled_from([250, 1_000, 3_000, 12_000, 45_000]))
    def wait(self, ms: int) -> None:
        self.watcher.run(ms)

    @rule(by=st.integers(1, 2))
    def expand(self, by: int) -> None:
        count = len(self.watcher.meta.route.partitions) + by
        if count <= 7:
            self.watcher.expand(count, BROKERS)

    def client(self, which: int) -> Watched | None:
        running = [client for client in self.watcher.watched if client.runs and not client.leaving]
        return running[which % len(running)] if len(running) > 1 else None

    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        client = self.client(which)
        if client is not None:
            client.leave()

    @rule(which=st.integers(0, 3))
    def kill_client(self, which: int) -> None:
        client = self.client(which)
        if client is not None:
            client.kill()
            self.watcher.deaths += 1
            self.watcher.fault()

    @rule(which=st.integers(0, 3), ms=st.sampled_from([2_000, 20_000, 35_000, 50_000]))
    def stop_client(self, which: int, ms: int) -> None:
        client = self.client(which)
        if client is not None:
            client.stop_for(ms)

    @rule(which=st.integers(0, 3), ms=st.sampled_from([4_000, 20_000, 50_000]))
    def cut_client(self, which: int, ms: int) -> None:
        client = self.client(which)
        if client is not None:
            client.cut_for(ms)

    @rule(which=st.integers(0, 3), lag_ms=st.sampled_from([0, 500, 2_000]), work_ms=st.sampled_from([0, 900, 40_000]))
    def slow(self, which: int, lag_ms: int, work_ms: int) -> None:
        client = self.client(which)
        if client is not None:
            client.lag_ms, client.work_ms = lag_ms, work_ms

    @rule(which=st.integers(0, 1), ms=st.sampled_from([3_000, 8_000, 11_000, 30_000]))
    def stop_host(self, which: int, ms: int) -> None:
        host = self.watcher.hosts[which]
        if host.runs:
            host.stop_for(ms)

    @precondition(lambda self: all(host.alive for host in self.watcher.hosts))
    @rule(which=st.integers(0, 1), asked=st.booleans())
    def end_host(self, which: int, asked: bool) -> None:
        host = self.watcher.hosts[which]
        self.watcher.deaths += not asked
        self.watcher.fault()
        if asked and host.runs:
            host.leave()
        else:
            host.kill()

    @rule(which=st.integers(0, 1))
    def start_host(self, which: int) -> None:
        host = self.watcher.hosts[which]
        if not host.alive:
            host.start()

    def teardown(self) -> None:
        if not hasattr(self, "watcher"):
            return
        watcher = self.watcher
        for host in watcher.hosts:
            if not host.alive:
                host.start()
        for client in watcher.watched:
            client.work_ms = client.lag_ms = 0
        self.come(1)
        # what is still stopped or cut off comes back, every partition has an owner again, and the backlog is done
        watcher.run(60_000 + OWNED_WITHIN_MS)
        for _ in range(60):
            if watcher.done == watcher.sent:
                break
            watcher.run(5_000)
        assert watcher.done == watcher.sent, "everything that was produced is processed"
        watcher.run(5_000)
        assert watcher.committed == {partition: len(log) for partition, log in watcher.logs.items()}
        for partition in watcher.meta.route.partitions:
            assert len(watcher.at_work(partition)) == 1


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(
    max_examples=6,
    stateful_step_count=25,
    deadline=None,
    report_multiple_bugs=False,
    # an example is minutes of a cluster's time: to shrink one takes longer than to read it
    phases=[Phase.reuse, Phase.generate],
)


class LongClusterMachine(ClusterMachine):
    """The same, for as long as a night allows."""


TestClusterMachineLong = pytest.mark.long(LongClusterMachine.TestCase)
TestClusterMachineLong.settings = settings(
    max_examples=2_000, stateful_step_count=60, phases=[Phase.reuse, Phase.generate]
)


# Single stories: what the rules promise one by one, and what becomes of them when a rule is taken away.


def story(
    *, work_ms: int, host: type[MemoryHost] = MemoryHost, client: type[Watched] | None = None, partitions: int = 2
) -> tuple[Watcher, Watched]:
    """Two hosts, and one client that has every partition and messages in all of them."""
    watcher = Watcher(partitions)
    watcher.host("one", "A", kind=host)
    watcher.host("two", "B", kind=host)
    first = watcher.client("first", work_ms=work_ms, kind=client)
    watcher.run(3_000)
    for lp in LPS * 3:
        assert watcher.try_send(lp)
    watcher.run(1_000)
    return watcher, first


def test_order_05_a_handover_without_a_failure_repeats_nothing_and_pauses_shortly() -> None:
    watcher, first = story(work_ms=3_000)
    second = watcher.client("second", work_ms=3_000)
    for _ in range(40):
        watcher.run(TICK_MS)
        if len(second.works) == 1:
            break
    (moved,) = second.works
    first.leave()
    watcher.run(20_000)
    assert set(second.works) == set(watcher.meta.route.partitions) and not first.works
    watcher.run(120_000)
    assert watcher.done == watcher.sent
    assert set(watcher.processed.values()) == {1}
    assert moved not in first.works


def test_order_05_who_waits_for_a_partition_has_it_at_once_after_its_release() -> None:
    """What a client learns with its next heartbeat is longer: the service answers a waiting one at once."""
    watcher, first = story(work_ms=20_000)
    second = watcher.client("second")
    watcher.run(HEARTBEAT_MS + 2 * TICK_MS)
    assert len(second.allocation) == 1 and not second.works, "the first finishes what it has"
    (moved,) = second.allocation
    while moved in first.works:
        watcher.run(TICK_MS)
    # a request that was refused is on its way back, the next one goes and returns
    watcher.run(4 * TICK_MS)
    assert moved in second.works


def test_order_03_a_dead_clients_partitions_have_an_owner_within_its_authorization() -> None:
    watcher, first = story(work_ms=0)
    second = watcher.client("second")
    watcher.run(10_000)
    first.kill()
    watcher.deaths += 1
    killed_ms = watcher.now_ms
    while len(second.works) < 2:
        watcher.run(TICK_MS)
    assert watcher.now_ms - killed_ms <= AUTHORIZATION_MS_DEFAULT + SLACK_MS


def test_meta_01_a_message_under_way_outlives_the_death_of_its_broker() -> None:
    """Its client claims the lock at the host that takes over, and the result counts: nothing is repeated."""
    watcher, first = story(work_ms=20_000)
    watcher.hosts[1].kill()
    watcher.run(19_000)
    assert watcher.hosts[0].roles.keys() >= {"A", "B"}
    watcher.run(200_000)
    assert set(first.works) == set(watcher.meta.route.partitions)
    assert set(watcher.processed.values()) == {1}


def test_meta_01_who_was_stopped_for_longer_than_its_lease_is_fenced_and_gets_its_broker_back() -> None:
    watcher, _ = story(work_ms=0)
    old = watcher.hosts[1]
    old.stop_for(30_000)
    watcher.run(15_000)
    assert watcher.meta.brokers.roles["B"].host == "one.1"
    watcher.run(20_000)
    assert (old.id, watcher.meta.brokers.roles["B"].host) == ("two.2", "two.2")


def test_order_04_a_release_that_a_stopped_broker_did_not_hear_is_repeated() -> None:
    """Found by the machine: else the next owner waited for the lock to expire."""
    watcher, first = story(work_ms=0)
    watcher.hosts[1].stop_for(8_000)
    second = watcher.client("second")
    watcher.run(3 * HEARTBEAT_MS)
    assert watcher.meta.brokers.roles["B"].host == "two.1"
    assert (len(first.works), len(second.works)) == (1, 1)


def test_order_05_clients_that_start_together_do_not_wait_for_one_another() -> None:
    watcher = Watcher(2)
    watcher.host("one", "A", "B")
    clients = [watcher.client(name) for name in ("first", "second")]
    watcher.run(2 * HEARTBEAT_MS)
    assert [len(client.works) for client in clients] == [1, 1]


def test_route_06_an_expansion_under_load_keeps_the_order_of_keys() -> None:
    watcher, _ = story(work_ms=500)
    watcher.client("second", work_ms=500)
    for count in (3, 5):
        watcher.expand(count, BROKERS)
        for lp in LPS * 4:
            watcher.try_send(lp)
            watcher.run(TICK_MS)
    watcher.run(120_000)
    assert watcher.done == watcher.sent
    assert set(watcher.processed.values()) == {1}


class Unsettled(MemoryHost):
    """Gives locks away at once after a takeover."""

    def take_lock(self, partition: str, client: str, *, held: bool) -> int | None:
        now_ms, locks = self._locks(partition)
        seat = self.view.online.seat(GROUP, TOPIC, partition)._replace(earlier=frozenset())
        return locks.take(lane_of(partition), client, seat, now_ms, held=held)


class Ungated(MemoryHost):
    """Gives moved keys away before the old partition was consumed."""

    def pull(self, partition: str, client: str, offset: int, count: int) -> list[KeyedMessage]:
        super().pull(partition, client, offset, count)
        return self.cluster.logs[partition][offset : offset + count]


class Unsealed(MemoryHost):
    """Sends moved keys to the new partition while the old one still gets some."""

    def _seal(self) -> None:
        for source in self.view.route.partitions:
            for epoch in self.view.moved.unsealed(source):
                self._append(lambda meta, s=source, e=epoch: decide_seal(meta.moved, "orders-1", s, e, 0))


class Unlocked(MemoryHost):
    """Gives the lock to the client that the allocation names."""

    def take_lock(self, partition: str, client: str, *, held: bool) -> int | None:
        now_ms, locks = self._locks(partition)
        seat = self.view.online.seat(GROUP, TOPIC, partition)
        if client == seat.owner and not held:
            locks.release(lane_of(partition), next(iter(seat.earlier), client))
        return locks.take(lane_of(partition), client, seat, now_ms, held=held)


class AlwaysRight(Right):
    """Goes on without authorization and lock."""

    def holds(self, now_ms: int) -> bool:
        return True


class Unauthorized(Watched):
    """Never looks at its authorization, and never calls a lock lost."""

    def _begin(self, partition: str, lock: ClientLock) -> None:
        super()._begin(partition, lock)
        work = self.works[partition]
        work.right = AlwaysRight(self.authorization, lock)
        work.run = OrderlyRun(work.right, work.committed, OrderlySettings(on_failure=OnFailure.IN_PLACE), self.now_ms)


def broker_dies_in_a_handover(watcher: Watcher, first: Watched) -> None:
    first.lag_ms = 2_000
    watcher.client("second")
    watcher.run(HEARTBEAT_MS + 1_000)
    for host in watcher.hosts:
        host.stop_for(LEASE_MS_DEFAULT + 500)
        watcher.run(LEASE_MS_DEFAULT + 1_500)


def expansion_with_a_backlog(watcher: Watcher, first: Watched) -> None:
    watcher.expand(4, BROKERS)
    watcher.run(500)
    for lp in LPS * 2:
        watcher.try_send(lp)
    watcher.client("second")
    watcher.run(120_000)


def handover(watcher: Watcher, first: Watched) -> None:
    watcher.client("second")
    watcher.run(15_000)


def client_cut_off(watcher: Watcher, first: Watched) -> None:
    watcher.client("second", work_ms=10_000)
    watcher.run(50_000)
    first.cut_for(60_000)
    watcher.run(60_000)


BROKEN = [
    pytest.param(broker_dies_in_a_handover, 30_000, {"host": Unsettled}, id="locks are given away after a takeover"),
    pytest.param(expansion_with_a_backlog, 2_000, {"host": Ungated}, id="moved keys do not wait"),
    pytest.param(expansion_with_a_backlog, 2_000, {"host": Unsealed}, id="the end of the old partition is wrong"),
    pytest.param(handover, 20_000, {"host": Unlocked}, id="the owner does not wait for the lock"),
    pytest.param(client_cut_off, 10_000, {"client": Unauthorized}, id="authorization and lock are not looked at"),
]


@pytest.mark.parametrize(("happens", "work_ms", "broken"), BROKEN)
def test_order_05_the_watcher_turns_red_when_a_rule_is_taken_away(
    happens: Callable[[Watcher, Watched], None], work_ms: int, broken: dict[str, Any]
) -> None:
    """And stays green in the same story with the rule."""
    happens(*story(work_ms=work_ms))
    with pytest.raises(AssertionError):
        happens(*story(work_ms=work_ms, **broken))
