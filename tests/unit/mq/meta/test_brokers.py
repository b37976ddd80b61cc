"""Leases, epochs and takeovers of brokers and of the meta role (SPEC META-1)."""

from __future__ import annotations

import pytest

from deltamq.mq.errors import Corrupt, Fenced
from deltamq.mq.meta.brokers import (
    META_ROLE,
    BrokerEvent,
    BrokersState,
    Host,
    HostAsked,
    HostLeft,
    HostRegistered,
    HostRenewed,
    LeaseWatch,
    Ownership,
    OwnLease,
    RoleTaken,
    check_role,
    decide_ask,
    decide_give_back,
    decide_leave,
    decide_register,
    decide_renew,
    decide_takeover,
)
from deltamq.mq.meta.fold import Meta, event_from_json, event_to_json
from deltamq.mq.meta.snapshot import MetaSnapshot

ONE = Host(id="one", address="http://a:1", brokers=("A",), renewal=0, load=0)
TWO = Host(id="two", address="http://b:1", brokers=("B",), renewal=0, load=0)
ONE_AGAIN = Host(id="one-again", address="http://a:1", brokers=("A",), renewal=0, load=0)


def registered(*hosts: Host) -> BrokersState:
    state = BrokersState()
    for host in hosts:
        state = state.apply_all(decide_register(state, host))
    return state


def test_meta_01_the_first_host_takes_its_broker_and_the_meta_role() -> None:
    state = registered(ONE, TWO)
    assert state.roles == {"A": Ownership("one", 1), META_ROLE: Ownership("one", 2), "B": Ownership("two", 3)}
    assert state.available == state.brokers == ("A", "B")
    assert (state.owner("B"), state.owner("C")) == (TWO, None)
    assert decide_register(state, ONE) == ()


def test_meta_01_a_dead_hosts_roles_are_taken_at_once_by_higher_epochs() -> None:
    state = registered(ONE, TWO)
    events = decide_takeover(state, "two", {"one": 0})
    after = state.apply_all(events)
    assert after.roles_of("two") == {"B": 3, META_ROLE: 4, "A": 5}
    assert "one" not in after.hosts
    assert HostLeft(id="one", expired=True) in events
    assert decide_takeover(after, "two", {"one": 0}) == ()


def test_meta_01_a_host_that_renewed_meanwhile_is_left_alone() -> None:
    state = registered(ONE, TWO)
    renewed = state.apply_all(decide_renew(state, "one", load=7))
    assert decide_takeover(renewed, "two", {"one": 0}) == ()
    assert renewed.hosts["one"].load == 7
    assert decide_takeover(renewed, "two", {"two": 0}) == (), "nobody declares itself dead"


def test_kafka_30_a_broker_keeps_its_number_whoever_comes_and_goes() -> None:
    state = registered(TWO, ONE)
    assert state.numbered == ("B", "A")
    state = state.apply_all(decide_leave(state, "two"))
    state = state.apply_all(decide_takeover(state, "one", {}, named=("0",)))
    snapshot = MetaSnapshot(meta=Meta(brokers=state), previous=0, told={})
    read = MetaSnapshot.from_json(snapshot.to_json()).meta.brokers
    assert read.numbered == state.numbered and state.numbered[:2] == ("B", "A") and set(read.brokers) == {"0", "A", "B"}


def test_meta_01_brokers_that_only_routes_name_are_taken_too() -> None:
    state = registered(ONE, TWO)
    after = state.apply_all(decide_takeover(state, "two", {}, named=("B", "C", "A")))
    assert after.roles_of("two") == {"B": 3, "C": 4}
    assert decide_takeover(after, "two", {}, named=("C",)) == ()


def test_meta_01_who_comes_back_is_fenced_and_begins_as_another_host() -> None:
    state = registered(ONE, TWO)
    after = state.apply_all(decide_takeover(state, "two", {"one": 0}))
    for call in (
        lambda: decide_renew(after, "one", load=0),
        lambda: decide_takeover(after, "one", {}),
        lambda: check_role(after, META_ROLE, "one", 2),
        lambda: check_role(after, META_ROLE, "two", 2),
    ):
        with pytest.raises(Fenced):
            call()
    check_role(after, META_ROLE, "two", 4)
    assert decide_leave(after, "one") == ()
    back = after.apply_all(decide_register(after, ONE_AGAIN))
    assert back.roles_of("one-again") == {}, "its broker has a stand-in"


def test_meta_01_a_stand_in_gives_a_broker_back_when_it_has_drained_it() -> None:
    state = registered(ONE, TWO)
    state = state.apply_all(decide_takeover(state, "two", {"one": 0}))
    assert decide_give_back(state, "two", ["A", "B", META_ROLE]) == (), "nobody else was started for A"
    state = state.apply_all(decide_register(state, ONE_AGAIN))
    assert decide_give_back(state, "two", []) == ()
    state = state.apply_all(decide_give_back(state, "two", ["A", "B", META_ROLE]))
    assert state.roles_of("one-again") == {"A": 6}
    assert set(state.roles_of("two")) == {"B", META_ROLE}


def test_meta_01_what_a_host_leaves_is_free_and_stays_known() -> None:
    state = registered(ONE, TWO)
    state = state.apply_all(decide_leave(state, "one"))
    assert (state.available, state.brokers, state.owner(META_ROLE)) == (("B",), ("A", "B"), None)
    assert state.apply_all(decide_takeover(state, "two", {})).available == ("A", "B")
    assert registered(ONE, TWO).apply_all([HostLeft(id="one", expired=False)]).epoch == 3, "epochs never go down"


def test_meta_01_others_wait_a_whole_lease_from_when_they_saw_the_host_asked() -> None:
    state, watch = registered(ONE, TWO), LeaseWatch(lease_ms=100)
    watch.see(state, 1_000)
    assert watch.expired(9_000) == {}, "nobody doubts it"
    state = state.apply_all(decide_ask(state, "two", ["one", "two", "none"]))
    assert state.asked == {"one"} and decide_ask(state, "two", ["one"]) == ()
    watch.see(state, 1_000)
    watch.see(state, 1_090)
    assert (watch.expired(1_099), watch.asked_since(999)) == ({}, {})
    assert watch.expired(1_100) == watch.asked_since(1_000) == {"one": 0}
    state = state.apply_all(decide_renew(state, "one", load=0))
    watch.see(state, 1_100)
    assert state.asked == frozenset() and watch.expired(9_000) == {}
    state = state.apply_all(decide_ask(state, "two", ["one"]))
    watch.see(state, 2_000)
    assert watch.expired(2_099) == {} and watch.expired(2_100) == {"one": 1}, "each question counts anew"
    assert state.apply_all([HostLeft(id="one", expired=True)]).asked == frozenset()


def test_meta_01_an_owner_stops_by_a_margin_before_others_may_take_over() -> None:
    state, lease = registered(ONE, TWO), OwnLease(1_000, lease_ms=100, margin_ms=10)
    assert lease.holds(1_089) and not lease.holds(1_090)
    lease.read(state, "one", 1_010)
    assert lease.until_ms == 1_100
    lease.read(state.apply_all(decide_ask(state, "two", ["one"])), "one", 1_040)
    lease.read(state, "none", 1_040)
    assert lease.until_ms == 1_100, "asked, it has to renew; and who is not there has no lease"
    lease.renewed(1_050)
    lease.renewed(1_020)
    assert lease.until_ms == 1_140


EVENTS: tuple[BrokerEvent, ...] = (
    HostRegistered(host=ONE),
    HostRenewed(id="one", renewal=1, load=3),
    HostAsked(id="one"),
    RoleTaken(role="A", host="one", epoch=1),
    HostLeft(id="one", expired=True),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_meta_04_events_survive_the_log(event: BrokerEvent) -> None:
    assert event_from_json(event.kind, event_to_json(event)) == event
    with pytest.raises(Corrupt, match=event.kind):
        event_from_json(event.kind, b'{"host": 7}')


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(HostRegistered(host=ONE), id="a host that is there already"),
        pytest.param(HostRenewed(id="one", renewal=2, load=0), id="a renewal that skips one"),
        pytest.param(HostRenewed(id="none", renewal=1, load=0), id="a renewal of nobody"),
        pytest.param(HostAsked(id="none"), id="nobody is asked"),
        pytest.param(HostLeft(id="none", expired=True), id="nobody left"),
        pytest.param(RoleTaken(role="A", host="none", epoch=9), id="nobody takes"),
        pytest.param(RoleTaken(role="A", host="one", epoch=2), id="an epoch that is not higher"),
    ],
)
def test_meta_02_a_log_that_contradicts_itself_is_corrupt(event: BrokerEvent) -> None:
    with pytest.raises(Corrupt):
        registered(ONE).apply_all([event])
