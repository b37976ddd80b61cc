"""What files say, and the changes from what there is: a pure function (SPEC LOOK-14)."""

from __future__ import annotations

import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.client.admin.desired import desired_of, read_files, schema, to_toml
from deltamq.mq.errors import Refused
from deltamq.mq.meta.desired import (
    Change,
    Desired,
    GroupWanted,
    PrincipalWanted,
    QuotaWanted,
    RuleWanted,
    TopicWanted,
    normal,
    plan,
    refused,
)

RULE = RuleWanted(resource="topic", pattern="orders.*", verbs=["subscribe", "publish"])
WANTED = Desired(
    topics={"orders": TopicWanted(partitions=4, retention_ms=60_000)},
    groups={"billing": GroupWanted(max_attempts=5, retry_policy={"exponential": {"initial_ms": 5_000}})},
    principals={"ada": PrincipalWanted(note="blue", rules=[RULE], quota=QuotaWanted(requests_per_s=9))},
)


def _short(changes: list[Change]) -> list[tuple[str, str, str]]:
    return [(change.does, change.kind, change.name.partition("/")[0]) for change in changes]


def test_look_14_all_is_made_and_a_repeat_changes_nothing() -> None:
    assert _short(plan(WANTED, Desired())) == [
        ("create", "topic", "orders"),
        ("create", "group", "billing"),
        ("create", "principal", "ada"),
        ("create", "rule", "ada"),
        ("change", "quota", "ada"),
    ]
    assert plan(WANTED, normal(WANTED), prune=True) == []


def test_look_14_only_what_is_said_and_differs_is_changed() -> None:
    there = deepcopy(normal(WANTED))
    there.topics["orders"].retention_ms, there.topics["orders"].message_type = 70_000, "fifo"
    there.principals["ada"].disabled = True
    assert plan(WANTED, there) == [
        Change("change", "topic", "orders", {"retention_ms": (70_000, 60_000)}),
        Change("change", "principal", "ada", {"disabled": (True, False)}),
    ]


def test_look_14_nothing_is_deleted_without_prune() -> None:
    there = deepcopy(normal(WANTED))
    there.topics["old"], there.groups["gone"] = TopicWanted(partitions=1), GroupWanted()
    there.principals["eve"] = PrincipalWanted()
    there.principals["ada"].rules.append(RuleWanted(resource="cluster", verbs=["admin"]))
    assert plan(WANTED, there) == []
    assert _short(plan(WANTED, there, prune=True)) == [
        ("delete", "rule", "ada"),
        ("delete", "group", "gone"),
        ("delete", "topic", "old"),
        ("delete", "principal", "eve"),
    ]


ADMIN = RuleWanted(resource="cluster", verbs=["admin"])


def test_sec_51_a_plan_knows_which_changes_leave_no_administrator() -> None:
    def of(wanted: dict[str, PrincipalWanted], there: dict[str, PrincipalWanted]) -> list[tuple[str, str, str]]:
        after, before = Desired(principals=wanted), Desired(principals=there)
        return _short(refused(plan(after, before, prune=True), after, before))

    ada, bob = PrincipalWanted(rules=[ADMIN]), PrincipalWanted(rules=[ADMIN])
    off = PrincipalWanted(rules=[ADMIN], disabled=True)
    assert of({}, {"ada": ada}) == [("delete", "principal", "ada")]
    assert of({}, {"ada": ada, "bob": bob}) == [("delete", "principal", "bob")], "one of them has to stay"
    assert of({"bob": bob}, {"ada": ada, "bob": bob}) == []
    assert of({"new": ada}, {"ada": ada}) == [], "another one is made before"
    assert of({}, {"ada": ada, "bob": PrincipalWanted(rules=[ADMIN], disabled=True)}) == [
        ("delete", "principal", "ada")
    ]
    assert of({"ada": off}, {"ada": ada}) == [("change", "principal", "ada")]
    assert of({"ada": off, "bob": bob}, {"ada": ada, "bob": bob}) == []
    assert of({"bob": bob}, {"ada": ada, "bob": off}) == [], "it is enabled before"
    denied = PrincipalWanted(rules=[ADMIN, RuleWanted(resource="cluster", verbs=["admin"], effect="deny")])
    assert of({"bob": denied}, {"ada": ada, "bob": bob}) == [("delete", "principal", "ada")]
    assert of({}, {"eve": PrincipalWanted(rules=[RULE])}) == []


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"topics": {"orders": {"partitons": 4}}}, "topics.*"),
        ({"topics": {"orders": {"partitions": "4"}}}, "topics.*.partitions"),
        ({"groups": {"billing": {"order": "sometimes"}}}, "groups.*.order"),
        ({"principals": {"ada": {"rules": [{"resource": "topics", "verbs": []}]}}}, "principals.*.rules[0].resource"),
        ({"keys": {}}, ""),
        ([], ""),
    ],
)
def test_look_14_what_is_not_known_is_refused_by_its_place(document: Any, field: str) -> None:
    with pytest.raises(Refused) as refused:
        desired_of(document, "orders.toml")
    assert refused.value.code == "desired_invalid" and refused.value.field == field
    assert refused.value.detail.startswith("orders.toml: ")


def test_look_14_the_files_of_a_folder_are_one_and_no_name_is_said_twice(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[topics.orders]\npartitions = 4\n")
    (tmp_path / "b.yaml").write_text("groups:\n  billing:\n    max_attempts: 5\n")
    (tmp_path / "c.txt").write_text("not one of them")
    found = read_files(tmp_path)
    assert found == Desired(
        topics={"orders": TopicWanted(partitions=4)}, groups={"billing": GroupWanted(max_attempts=5)}
    )
    (tmp_path / "d.toml").write_text("[topics.orders]\npartitions = 5\n")
    with pytest.raises(Refused, match=r"topics\.orders is in .*a\.toml, too"):
        read_files(tmp_path)
    for text, name in (("[topics", "bad.toml"), ("a: [", "bad.yaml")):
        (tmp_path / name).write_text(text)
        with pytest.raises(Refused) as refused:
            read_files(tmp_path / name)
        assert refused.value.code == "desired_invalid"


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=20)


@given(NAMES, st.text(max_size=30), st.integers(1, 2**53 - 1), st.booleans())
def test_look_14_a_file_that_is_written_says_what_was_meant(name: str, note: str, number: int, disabled: bool) -> None:
    desired = Desired(
        topics={name: TopicWanted(partitions=number, message_type=note or None)},
        groups={name: GroupWanted(order="key", retry_policy=[1, number])},
        principals={
            name: PrincipalWanted(note=note, rules=[RULE], quota=QuotaWanted(requests_per_s=number), disabled=disabled)
        },
    )
    assert desired_of(tomllib.loads(to_toml(desired)), "it") == desired


def test_look_14_the_schema_names_each_setting() -> None:
    topic = schema()["$defs"]["TopicWanted"]
    assert topic["additionalProperties"] is False and "retention_bytes" in topic["properties"]
