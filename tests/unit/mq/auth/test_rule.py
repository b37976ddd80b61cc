"""Access rules: what one may say (SPEC SEC-2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.auth.principals import IMPLIED, VERBS, rule_of
from deltamq.mq.errors import Refused

GOOD = {"principal": "reports", "effect": "allow", "resource": "topic", "pattern": "orders", "verbs": ["publish"]}


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders", None),
        ("orders.*", "orders."),
        ("*", ""),
        ("%RETRY%a_b", None),
        ("a" * 249, None),
        ("a-b|c%.*", "a-b|c%."),
    ],
)
def test_sec_02_a_pattern_is_a_name_or_the_beginning_of_names(pattern: str, prefix: str | None) -> None:
    assert rule_of(**GOOD | {"pattern": pattern}).prefix == prefix


@pytest.mark.parametrize("pattern", ["a b", "größe*", "a" * 255, "*"])
def test_sec_02_a_rule_names_any_group(pattern: str) -> None:
    asked = {"resource": "group", "verbs": ["subscribe"]}
    assert rule_of(**GOOD | asked | {"pattern": pattern}).pattern == pattern
    for wrong in ("a@b", "**", "a*b", "a\n", "a" * 256):
        with pytest.raises(Refused, match="pattern"):
            rule_of(**GOOD | asked | {"pattern": wrong})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("pattern", one) for one in ("", "**", "a*b", "*a", "orders.**", "../x", "a b", "größe", "a\n", "a" * 250)),
        *(("principal", one) for one in ("", ".", "..", "a b", "a/b", "ä", "a" * 128, "a\n", "*")),
        *(("effect", one) for one in ("", "Allow", "maybe")),
        *(("resource", one) for one in ("", "Topic", "broker")),
        *(("verbs", one) for one in ([], ["read"], ["publish", "reset"], ["Publish"])),
    ],
)
def test_sec_02_a_wrong_part_is_refused_by_its_name(field: str, wrong: object) -> None:
    with pytest.raises(Refused) as refused:
        rule_of(**GOOD | {field: wrong})
    assert refused.value.field == field


def test_sec_02_the_cluster_has_no_names() -> None:
    cluster = {**GOOD, "resource": "cluster", "verbs": ["admin"]}
    assert rule_of(**cluster | {"pattern": "*"}).verbs == ("admin",)
    with pytest.raises(Refused):
        rule_of(**cluster | {"pattern": "orders"})


@given(st.permutations(["publish", "subscribe", "create", "publish"]))
def test_sec_02_a_rule_that_is_put_twice_is_one_rule(verbs: list[str]) -> None:
    assert rule_of(**GOOD | {"verbs": verbs}) == rule_of(**GOOD | {"verbs": ["create", "publish", "subscribe"]})


def test_sec_02_rules_that_differ_have_ids_that_differ() -> None:
    differ = {
        "principal": "other",
        "effect": "deny",
        "resource": "group",
        "pattern": "orders.*",
        "verbs": ["subscribe"],
    }
    subscribe = {**GOOD, "verbs": ["subscribe"]}
    rules = [rule_of(**GOOD), *(rule_of(**subscribe | {field: value}) for field, value in differ.items())]
    assert len({rule.id for rule in rules}) == len(rules)


def test_sec_02_only_what_needs_it_implies_describing() -> None:
    everything = {verb for verbs in VERBS.values() for verb in verbs}
    assert IMPLIED.keys() == everything - {"create", "describe", "admin", "metrics", "audit"}
