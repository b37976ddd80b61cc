"""Decisions: any deny wins, and nothing is allowed that is not granted (SPEC SEC-2)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.auth.callers import Decisions
from deltamq.mq.auth.principals import CLUSTER, IMPLIED, VERBS, AccessRule, Resource, Verb, rule_of

WHO = ("reports", "reports2", "billing")
NAMES = ("orders", "orders.x", "orders.", "order", "ORDERS.x", "%RETRY%orders", "orders.x.y", "..", "", "отders.x")
PATTERNS = ("orders", "orders.*", "orders.x", "orders*", "*", "o*", "%*", "orders.x*", "ORDERS.*")


def allow(pattern: str, *verbs: Verb, resource: Resource = "topic", principal: str = "reports") -> AccessRule:
    return rule_of(principal=principal, effect="allow", resource=resource, pattern=pattern, verbs=verbs)


def deny(pattern: str, *verbs: Verb, resource: Resource = "topic", principal: str = "reports") -> AccessRule:
    return rule_of(principal=principal, effect="deny", resource=resource, pattern=pattern, verbs=verbs)


@st.composite
def any_rule(draw: st.DrawFn, effects: Sequence[str] = ("allow", "deny")) -> AccessRule:
    resource: Resource = draw(st.sampled_from(tuple(VERBS)))
    return rule_of(
        principal=draw(st.sampled_from(WHO)),
        effect=draw(st.sampled_from(effects)),
        resource=resource,
        pattern=CLUSTER if resource == "cluster" else draw(st.sampled_from(PATTERNS)),
        verbs=draw(st.sets(st.sampled_from(VERBS[resource]), min_size=1)),
    )


def told(rules: Sequence[AccessRule]) -> dict[tuple[str, Resource, str, Verb], bool]:
    """What the rules allow, for everybody, everything and every verb."""
    decisions = Decisions(rules)
    return {
        (who, resource, name, verb): decisions.allows(who, resource, name, verb)
        for who in WHO
        for resource, verbs in VERBS.items()
        for name in ((CLUSTER,) if resource == "cluster" else NAMES)
        for verb in verbs
    }


def by_the_words(rules: Sequence[AccessRule], who: str, resource: Resource, name: str, verb: Verb) -> bool:
    """The rule as SPEC says it, without any index."""
    about = [
        rule
        for rule in rules
        if (rule.principal, rule.resource) == (who, resource)
        and (name.startswith(rule.prefix) if rule.prefix is not None else name == rule.pattern)
    ]
    grants = {one for rule in about if rule.effect == "allow" for one in rule.verbs}
    granted = verb in grants or any(verb in IMPLIED.get(one, ()) for one in grants)
    return granted and not any(rule.effect == "deny" and verb in rule.verbs for rule in about)


rules_of_all = st.lists(any_rule(), max_size=12)


@given(rules_of_all)
def test_sec_02_decisions_are_what_the_rules_say(rules: list[AccessRule]) -> None:
    assert told(rules) == {asked: by_the_words(rules, *asked) for asked in told([])}


@pytest.mark.promise("AUTH-2")
@given(rules_of_all, any_rule(("deny",)))
def test_sec_02_a_deny_that_is_added_never_allows_more(rules: list[AccessRule], denying: AccessRule) -> None:
    before, after = told(rules), told([*rules, denying])
    assert all(before[asked] or not allowed for asked, allowed in after.items())


@given(rules_of_all, any_rule(("allow",)))
def test_sec_02_an_allow_that_is_added_never_allows_less(rules: list[AccessRule], allowing: AccessRule) -> None:
    before, after = told(rules), told([*rules, allowing])
    assert all(after[asked] or not allowed for asked, allowed in before.items())


@given(rules_of_all, st.randoms())
def test_sec_02_the_order_of_rules_means_nothing(rules: list[AccessRule], random: st.DataObject) -> None:
    shuffled = list(rules)
    random.shuffle(shuffled)  # type: ignore[attr-defined] # it is a Random
    assert told(shuffled) == told(rules)


@given(rules_of_all, st.sampled_from(["describe", "publish"]))
def test_sec_02_lists_show_what_is_allowed(rules: list[AccessRule], verb: Verb) -> None:
    decisions = Decisions(rules)
    for who in WHO:
        shown = decisions.filter(who, "topic", verb)
        assert [shown is None or shown(name) for name in NAMES] == [
            decisions.allows(who, "topic", name, verb) for name in NAMES
        ]


@given(rules_of_all, st.lists(st.sampled_from(WHO[1:]), unique=True).map(tuple))
def test_sec_15_who_is_in_groups_may_do_what_all_their_rules_say_together(
    rules: list[AccessRule], groups: tuple[str, ...]
) -> None:
    decisions = Decisions(rules)
    as_own = [
        rule_of(principal=WHO[0], effect=one.effect, resource=one.resource, pattern=one.pattern, verbs=one.verbs)
        for one in rules
        if one.principal in (WHO[0], *groups)
    ]
    alone = Decisions(as_own)
    for who, resource, name, verb in told([]):
        if who == WHO[0]:
            allowed = decisions.allows(who, resource, name, verb, groups)
            assert allowed == alone.allows(who, resource, name, verb)
            shown = decisions.filter(who, resource, verb, groups)
            assert allowed == (shown is None or shown(name))
    assert decisions.has_grants(WHO[0], groups) == alone.has_grants(WHO[0])


def test_sec_02_without_a_rule_there_is_no_access() -> None:
    assert not any(told([]).values())
    assert not any(allowed for (who, *_), allowed in told([allow("*", "publish")]).items() if who != "reports")


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders.x", "orders.", "orders.x.y"}),
        ("orders.x", {"orders.x"}),
        ("orders*", {"orders", "orders.x", "orders.", "orders.x.y"}),
        ("*", set(NAMES)),
    ],
)
def test_sec_02_patterns_match_as_bytes_do(pattern: str, matching: set[str]) -> None:
    decisions = Decisions([allow(pattern, "publish")])
    assert {name for name in NAMES if decisions.allows("reports", "topic", name, "publish")} == matching


def test_sec_02_who_may_publish_or_subscribe_may_describe_unless_that_is_denied() -> None:
    assert Decisions([allow("orders", "publish")]).allows("reports", "topic", "orders", "describe")
    assert not Decisions([allow("orders", "create")]).allows("reports", "topic", "orders", "describe")
    denied = Decisions([allow("orders", "publish"), deny("o*", "describe")])
    assert not denied.allows("reports", "topic", "orders", "describe")
    assert denied.allows("reports", "topic", "orders", "publish")


def test_sec_02_topics_and_groups_of_one_name_are_two_resources() -> None:
    decisions = Decisions([allow("orders", "subscribe")])
    assert decisions.allows("reports", "topic", "orders", "subscribe")
    assert not decisions.allows("reports", "group", "orders", "subscribe")


def test_sec_02_what_is_remembered_is_bounded_and_right() -> None:
    decisions = Decisions([allow("orders.*", "publish")], cached_max=10)
    for number in range(100):
        assert decisions.allows("reports", "topic", f"orders.{number}", "publish")
        assert not decisions.allows("reports", "topic", f"order.{number}", "publish")
        assert len(decisions._cached) <= 10
    assert not decisions.allows("reports", "topic", "orders." + "x" * 249, "publish"), "nothing has such a name"


def rules_for(principals: int, each: int) -> list[AccessRule]:
    return [
        allow(f"team{number}.{'x' * (number % 40)}*", "publish", principal=f"p{who}")
        for who in range(principals)
        for number in range(each)
    ]


@pytest.mark.bench
@pytest.mark.parametrize(("principals", "each"), [(1, 100), (1_000, 10)])
def test_sec_02_how_long_a_decision_takes(principals: int, each: int) -> None:
    rules = rules_for(principals, each)
    began = time.perf_counter()
    decisions = Decisions(rules)
    made_ms = (time.perf_counter() - began) * 1e3
    count = 20_000
    began = time.perf_counter()
    for number in range(count):
        decisions.allows(f"p{number % principals}", "topic", f"team5.xxxxx{number}", "publish")
    miss_us = (time.perf_counter() - began) / count * 1e6
    began = time.perf_counter()
    for _ in range(count):
        decisions.allows("p0", "topic", "team5.xxxxx1", "publish")
    hit_us = (time.perf_counter() - began) / count * 1e6
    print(f"\n{principals * each} rules of {principals}: {made_ms:.1f} ms, miss {miss_us:.2f} us, hit {hit_us:.3f} us")
    assert miss_us < 20 and hit_us < 1, "the limits of SEC-2"
