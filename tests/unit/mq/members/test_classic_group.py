"""The members of a group, played against chance: joins, plans, silence and goodbyes in any order (SPEC KAFKA-9)."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.members import (
    INITIAL_DELAY_MS,
    REBALANCE_MS_MAX,
    ClassicGroup,
    Joining,
    MemberError,
    Phase,
)

RANGE = (("range", b"range data"),)
BOTH = (("sticky", b"sticky data"), ("range", b"range data"))
SESSION_MS = 10_000
REBALANCE_MS = 30_000


def _said(protocols=RANGE, **other) -> Joining:
    values = {"session_ms": SESSION_MS, "rebalance_ms": REBALANCE_MS, **other}
    return Joining("client", "/127.0.0.1", "consumer", protocols, **values)


def _code(call) -> str:
    with pytest.raises(DeltaMQError) as error:
        call()
    return error.value.code


def _stable(*members: str) -> ClassicGroup:
    """Return a group with these members, each with its own name as its part, at time 1,000."""
    group = ClassicGroup()
    for member in members:
        group.join(0, "", member, _said())
    group.tick(1_000)
    assert group.take_joined() == list(members)
    for member in members:
        group.sync(1_000, member, group.generation, {one: one.encode() for one in members})
    assert sorted(group.take_synced()) == sorted(members)
    assert group.phase is Phase.STABLE
    return group


def test_kafka_09_members_that_start_together_are_one_generation() -> None:
    group = ClassicGroup()
    group.join(0, "", "a", _said())
    group.join(100, "", "b", _said())
    assert group.take_joined() == []
    assert group.next_ms() == INITIAL_DELAY_MS
    group.tick(INITIAL_DELAY_MS)
    assert group.take_joined() == ["a", "b"]
    assert group.joined("a").members == (("a", None, b"range data"), ("b", None, b"range data"))
    assert group.joined("b").members == ()
    assert group.joined("b").generation == group.joined("a").generation == 1


def test_kafka_09_the_leaders_plan_is_told_to_all() -> None:
    group = _stable("a", "b")
    assert [group.synced(one).assignment for one in ("a", "b")] == [b"a", b"b"]


def test_kafka_09_a_member_more_makes_all_join_again() -> None:
    group = _stable("a", "b")
    group.join(2_000, "", "c", _said())
    for old in ("a", "b"):
        assert _code(lambda old=old: group.heartbeat(2_000, old, 1)) == "rebalance_in_progress"
        group.join(2_100, old, "", _said())
    assert sorted(group.take_joined()) == ["a", "b", "c"]
    assert group.generation == 2
    assert _code(lambda: group.sync(2_200, "a", 1, {})) == "illegal_generation"
    assert _code(lambda: group.check_commit(2_200, "a", 1)) == "illegal_generation"
    assert _code(lambda: group.check_commit(2_200, "a", 2)) == "rebalance_in_progress"


def test_kafka_09_who_does_not_join_again_in_time_is_out() -> None:
    group = _stable("a", "b")
    group.join(2_000, "", "c", _said())
    group.join(2_000, "a", "", _said())
    assert _code(lambda: group.heartbeat(9_000, "b", 1)) == "rebalance_in_progress"
    group.tick(2_000 + REBALANCE_MS)
    assert sorted(group.take_joined()) == ["a", "c"]
    assert _code(lambda: group.heartbeat(40_000, "b", 1)) == "unknown_member"


def test_kafka_09_nobody_waits_as_long_as_members_with_no_end_say() -> None:
    """Some clients say 2^31-1 milliseconds, 24 days."""
    group = ClassicGroup()
    group.join(0, "", "a", _said(rebalance_ms=2**31 - 1))
    group.tick(INITIAL_DELAY_MS)
    group.join(1_000, "", "b", _said())
    assert group.take_joined() == ["a"]
    until = 1_000 + REBALANCE_MS_MAX
    for now_ms in range(2_000, until, SESSION_MS):
        assert _code(partial(group.heartbeat, now_ms, "a", 1)) == "rebalance_in_progress"
        group.tick(now_ms)
    assert group.take_joined() == []
    group.tick(until)
    assert group.take_joined() == ["b"] and list(group.members) == ["b"]


def test_kafka_09_a_member_that_is_not_heard_of_is_out() -> None:
    group = _stable("a", "b")
    group.heartbeat(9_000, "a", 1)
    due = group.next_ms()
    assert due == 1_000 + SESSION_MS + 1
    group.tick(due)
    assert list(group.members) == ["a"] and group.phase is Phase.JOINING
    group.join(due, "a", "", _said())
    assert group.take_joined() == ["a"]


def test_kafka_09_members_that_wait_for_a_plan_are_not_silent_however_long_it_takes() -> None:
    group = ClassicGroup()
    for member in ("a", "b"):
        group.join(0, "", member, _said())
    group.tick(1_000)
    group.sync(1_000, "b", group.generation, {})
    for now_ms in range(4_000, 31_000, 3_000):
        group.heartbeat(now_ms, "a", group.generation)
        group.tick(now_ms)
    group.sync(31_000, "a", group.generation, {"a": b"1", "b": b"2"})
    assert sorted(group.take_synced()) == ["a", "b"]
    assert group.synced("b").assignment == b"2"
    assert group.next_ms() == 31_000 + SESSION_MS + 1, "both sessions begin when the plan is told"
    group.tick(31_000 + SESSION_MS)
    assert list(group.members) == ["a", "b"]


def test_kafka_09_the_last_that_leaves_ends_the_generation() -> None:
    group = _stable("a")
    group.leave(2_000, "a")
    assert group.phase is Phase.EMPTY and group.next_ms() is None
    assert _code(lambda: group.leave(2_000, "a")) == "unknown_member"
    group.check_commit(2_000, "", -1)


def test_kafka_09_only_members_commit_while_there_are_any() -> None:
    group = _stable("a")
    group.check_commit(2_000, "a", 1)
    assert _code(lambda: group.check_commit(2_000, "", -1)) == "unknown_member"


def test_kafka_09_the_way_to_plan_is_one_that_all_know() -> None:
    group = ClassicGroup()
    group.join(0, "", "a", _said(BOTH))
    group.join(0, "", "b", _said(RANGE))
    assert _code(lambda: group.join(0, "", "c", _said((("own", b""),)))) == "inconsistent_protocol"
    assert _code(lambda: group.join(0, "", "c", _said(()))) == "inconsistent_protocol"
    group.tick(INITIAL_DELAY_MS)
    assert group.protocol == "range"


def test_kafka_09_an_instance_that_comes_back_takes_the_place_of_what_it_was() -> None:
    group = ClassicGroup()
    group.join(0, "", "a", _said(instance_id="one"))
    group.join(0, "", "b", _said(instance_id="one"))
    assert list(group.members) == ["b"] and group.id_of_instance("one") == "b"
    assert group.take_joined() == ["a"]
    assert _code(lambda: group.joined("a")) == "fenced_instance"


def _static(*names: str) -> ClassicGroup:
    """Return a group of static members, each an instance of its own name."""
    group = ClassicGroup()
    for name in names:
        group.join(0, "", name, _said(instance_id=name))
    group.tick(1_000)
    for name in names:
        group.sync(1_000, name, 1, {one: one.encode() for one in names}, name)
    assert group.take_joined() and group.take_synced()
    return group


@pytest.mark.parametrize("name", ["a", "b"])
def test_kafka_09_a_static_member_that_comes_back_has_its_part_and_nobody_plans_anew(name) -> None:
    group = _static("a", "b")
    assert group.leader == "a"
    group.join(5_000, "", "later", _said(instance_id=name))
    assert (group.take_joined(), group.phase, group.generation) == (["later"], Phase.STABLE, 1)
    told = group.joined("later")
    assert (told.generation, told.leader, told.members) == (1, "a", ()), "it is not told to plan"
    group.sync(5_000, "later", 1, {}, name)
    assert group.synced("later").assignment == name.encode()
    for call in (
        lambda: group.heartbeat(5_000, name, 1, name),
        lambda: group.sync(5_000, name, 1, {}, name),
        lambda: group.check_commit(5_000, name, 1, name),
        lambda: group.leave(5_000, name, name),
        lambda: group.join(5_000, name, "", _said(instance_id=name)),
    ):
        assert _code(call) == "fenced_instance"
    assert _code(lambda: group.heartbeat(5_000, "later", 1, "nobody")) == "unknown_member"
    assert _code(lambda: group.join(5_000, "later", "", _said(instance_id="nobody"))) == "unknown_member"
    group.heartbeat(5_000, "later", 1, name)


def test_kafka_17_a_static_leader_that_knows_of_it_leads_and_has_nothing_to_plan() -> None:
    group = _static("a", "b")
    group.join(5_000, "", "later", _said(instance_id="a", may_skip=True))
    assert group.take_joined() == ["later"] and group.phase is Phase.STABLE
    told = group.joined("later")
    assert (told.leader, told.skips, [one[0] for one in told.members]) == ("later", True, ["later", "b"])
    group.join(6_000, "later", "", _said(BOTH, instance_id="a", may_skip=True))
    group.join(6_000, "b", "", _said(instance_id="b", may_skip=True))
    assert sorted(group.take_joined()) == ["b", "later"]
    assert (group.joined("later").skips, group.generation) == (False, 2), "there is a new plan to make"
    group.join(7_000, "", "other", _said(instance_id="b", may_skip=True))
    assert not group.joined("other").skips, "it does not lead"


def test_kafka_17_who_plans_by_another_protocol_gets_no_part() -> None:
    group = _stable("a")
    for by in (("connect", "range"), ("consumer", "sticky"), (None, "sticky")):
        assert _code(partial(group.sync, 2_000, "a", 1, {}, by=by)) == "inconsistent_protocol"
    assert group.take_synced() == []
    for by in (("consumer", "range"), (None, None)):
        group.sync(2_000, "a", 1, {}, by=by)
        assert group.take_synced() == ["a"]


def test_kafka_09_a_static_member_that_plans_in_another_way_makes_all_plan_anew() -> None:
    group = _static("a", "b")
    group.join(5_000, "", "later", _said(BOTH, instance_id="a"))
    assert group.phase is Phase.JOINING
    group.join(5_000, "b", "", _said(instance_id="b"))
    assert sorted(group.take_joined()) == ["b", "later"]
    assert group.joined("later").leader == group.leader == "later"


def test_kafka_09_a_static_member_that_stays_away_is_gone_after_its_session() -> None:
    group = _static("a", "b")
    group.heartbeat(SESSION_MS, "a", 1, "a")
    group.tick(SESSION_MS + 1_001)
    assert (list(group.members), group.phase) == (["a"], Phase.JOINING)
    group.leave(SESSION_MS + 1_002, "", "a")
    assert group.phase is Phase.EMPTY


def test_kafka_09_a_new_member_joins_with_the_id_that_it_was_given() -> None:
    group = ClassicGroup()
    assert _code(lambda: group.join(0, "", "a", _said(), needs_id=True)) == "member_id_required"
    assert not group.members and group.next_ms() == SESSION_MS + 1
    assert group.join(10, "a", "", _said(), needs_id=True) == "a"
    group.join(20, "", "static", _said(instance_id="static"), needs_id=True)
    group.tick(INITIAL_DELAY_MS + 10)
    assert sorted(group.take_joined()) == ["a", "static"]
    assert _code(lambda: group.join(600, "", "late", _said(), needs_id=True)) == "member_id_required"
    group.tick(600 + SESSION_MS + 1)
    assert _code(lambda: group.join(0, "late", "", _said(), needs_id=True)) == "unknown_member", "it came too late"


@pytest.mark.parametrize("ms", [5_999, 1_800_001])
def test_kafka_23_a_session_has_six_seconds_to_thirty_minutes(ms: int) -> None:
    assert _code(lambda: ClassicGroup().join(0, "", "a", _said(session_ms=ms))) == "invalid_session_timeout"


def test_kafka_23_shorter_sessions_are_taken_where_the_settings_allow_them() -> None:
    group = ClassicGroup(session_ms_min=2_000)
    assert group.join(0, "", "a", _said(session_ms=2_000)) == "a"
    assert _code(lambda: group.join(0, "", "b", _said(session_ms=1_999))) == "invalid_session_timeout"


class Members(RuleBasedStateMachine):
    """Members that do anything at any time; nobody waits for ever, and a generation has one plan."""

    def __init__(self) -> None:
        super().__init__()
        self.group = ClassicGroup()
        self.now = 0
        self.made = 0
        self.joining: set[str] = set()
        self.syncing: set[str] = set()
        #: The parts that members were told, by generation.
        self.told: dict[int, dict[str, bytes]] = {}

    def _settle(self) -> None:
        self.joining -= set(self.group.take_joined())
        for member in self.group.take_synced():
            self.syncing.discard(member)
            try:
                part = self.group.synced(member).assignment
            except MemberError:
                continue
            assert self.told.setdefault(self.group.generation, {}).setdefault(member, part) == part

    @rule(protocols=st.sampled_from([RANGE, BOTH]))
    def new(self, protocols) -> None:
        self.made += 1
        self.joining.add(self.group.join(self.now, "", f"m{self.made}", _said(protocols)))
        self._settle()

    @rule(instance=st.sampled_from(["one", "two"]), protocols=st.sampled_from([RANGE, BOTH]))
    def static(self, instance, protocols) -> None:
        self.made += 1
        former, generation = self.group.id_of_instance(instance), self.group.generation
        part = None if former is None else self.group.members[former].assignment
        member = self.group.join(self.now, "", f"m{self.made}", _said(protocols, instance_id=instance))
        self.joining.add(member)
        if former is not None:
            assert former not in self.group.members
            assert _code(lambda: self.group.heartbeat(self.now, former, generation, instance)) == "fenced_instance"
            if self.group.phase is Phase.STABLE:
                assert self.group.members[member].assignment == part
                self.told.get(generation, {})[member] = part
        self._settle()

    @rule()
    def given(self) -> None:
        self.made += 1
        new_id = f"m{self.made}"
        assert _code(lambda: self.group.join(self.now, "", new_id, _said(), needs_id=True)) == "member_id_required"
        self.joining.add(self.group.join(self.now, new_id, "", _said(), needs_id=True))
        self._settle()

    @rule(data=st.data(), protocols=st.sampled_from([RANGE, BOTH]))
    def again(self, data, protocols) -> None:
        member = data.draw(st.sampled_from(sorted(self.group.members) or ["nobody"]))
        try:
            self.joining.add(self.group.join(self.now, member, "", _said(protocols)))
        except MemberError:
            assert member not in self.group.members
        self._settle()

    @rule(data=st.data(), behind=st.integers(0, 1))
    def sync(self, data, behind) -> None:
        member = data.draw(st.sampled_from(sorted(self.group.members) or ["nobody"]))
        plan = {one: one.encode() for one in self.group.members}
        try:
            self.group.sync(self.now, member, self.group.generation - behind, plan)
            assert behind == 0
            self.syncing.add(member)
        except MemberError:
            pass
        self._settle()

    @rule(data=st.data())
    def leave(self, data) -> None:
        member = data.draw(st.sampled_from(sorted(self.group.members) or ["nobody"]))
        with contextlib.suppress(MemberError):
            self.group.leave(self.now, member)
        self._settle()

    @rule(data=st.data())
    def heartbeat(self, data) -> None:
        member = data.draw(st.sampled_from(sorted(self.group.members) or ["nobody"]))
        with contextlib.suppress(MemberError):
            self.group.heartbeat(self.now, member, self.group.generation)

    @rule(ms=st.integers(0, 20_000))
    def later(self, ms) -> None:
        self.now += ms
        self.group.tick(self.now)
        self._settle()

    @invariant()
    def time_decides_what_waits(self) -> None:
        waits = {one.id for one in self.group.members.values() if one.joins or one.syncs}
        assert {one for one in self.joining | self.syncing if one in self.group.members} <= waits
        assert not waits or self.group.next_ms() is not None
        assert (self.group.phase is Phase.EMPTY) == (not self.group.members)
        if self.group.phase in (Phase.SYNCING, Phase.STABLE):
            assert self.group.leader in self.group.members
            assert not any(one.joins for one in self.group.members.values())

    def teardown(self) -> None:
        for _ in range(3 * len(self.group.members) + 3):
            due = self.group.next_ms()
            if due is None:
                break
            self.now = max(self.now, due)
            self.group.tick(self.now)
            self._settle()
        assert not self.joining and not self.syncing, "somebody waits for ever"


def test_kafka_09_nobody_waits_for_ever_and_a_generation_has_one_plan() -> None:
    run_state_machine_as_test(Members, settings=settings(stateful_step_count=40))
