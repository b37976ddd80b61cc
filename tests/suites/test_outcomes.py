"""What the runner of `make suites` reads: expected failures, and the output of suites."""

from __future__ import annotations

import json

import pytest

from tests.suites.__main__ import SUITES, expected_failures
from tests.suites.outcomes import (
    ExpectationsInvalid,
    Outcome,
    compare,
    go_outcomes,
    librdkafka_outcome,
    printed_outcomes,
    reasons,
)


def test_a_reason_holds_for_the_tests_below_it() -> None:
    text = "# a comment\nno transactions\n    t.py::test_a\n    t.py::test_b[x y]\n\nno ACL calls\n    t.py::test_c\n"
    assert reasons(text) == {
        "t.py::test_a": "no transactions",
        "t.py::test_b[x y]": "no transactions",
        "t.py::test_c": "no ACL calls",
    }


@pytest.mark.parametrize("text", ["    a\n", "why\n    a\nother\n    a\n"])
def test_a_test_without_a_reason_or_with_two_is_refused(text: str) -> None:
    with pytest.raises(ExpectationsInvalid):
        reasons(text)


@pytest.mark.parametrize("name", SUITES)
def test_each_suite_has_a_list_that_can_be_read(name: str) -> None:
    assert all(expected_failures(name).values())


def test_only_what_is_listed_may_fail_and_must() -> None:
    outcomes = {"a": Outcome.PASS, "b": Outcome.FAIL, "c": Outcome.SKIP}
    assert compare(outcomes, ["b"]).is_as_expected
    assert compare(outcomes, []).failed == ("b",)
    assert compare(outcomes, ["a", "b"]).passed_unexpectedly == ("a",)
    assert compare(outcomes, ["b", "c", "d"]).missing == ("c", "d")
    assert compare(outcomes, ["b", "c", "d"], is_whole=False).is_as_expected


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.FAIL])
def test_a_test_that_may_fail_and_may_pass_is_as_expected_both_ways(outcome: Outcome) -> None:
    assert compare({"a": outcome}, reasons("its client counts seconds\n    ? a\n")).is_as_expected
    assert not compare({"a": outcome, "b": Outcome.FAIL}, ["? a"]).is_as_expected


def _events(*pairs: str) -> list[str]:
    return [json.dumps({"Action": action, "Test": test}) for action, test in (pair.split() for pair in pairs)]


def test_go_counts_the_tests_within_tests() -> None:
    lines = _events("run A", "run A/x", "fail A/x", "run A/y", "pass A/y", "fail A", "run B", "skip B")
    assert go_outcomes(["not JSON", "1", json.dumps({"Action": "fail"}), *lines]) == {
        "A/x": Outcome.FAIL,
        "A/y": Outcome.PASS,
        "B": Outcome.SKIP,
    }


def test_go_counts_a_test_that_fails_itself_and_one_that_ends_the_process() -> None:
    assert go_outcomes(_events("run A", "run A/x", "pass A/x", "fail A", "run B")) == {
        "A": Outcome.FAIL,
        "A/x": Outcome.PASS,
        "B": Outcome.FAIL,
    }


@pytest.mark.parametrize(
    ("word", "outcome"), [("PASSED", Outcome.PASS), ("FAILED", Outcome.FAIL), ("SKIPPED", Outcome.SKIP)]
)
def test_librdkafka_tells_of_a_test_in_its_summary(word: str, outcome: Outcome) -> None:
    output = (
        f"TEST 1 (bare) SUMMARY\n\x1b[31m| 0004_conf                                | {word:>10} |   0.210s |\x1b[0m\n"
    )
    assert librdkafka_outcome(output, "0004_conf") is outcome
    assert librdkafka_outcome(output, "0005_order") is Outcome.FAIL


def test_programs_of_ours_print_their_outcomes() -> None:
    output = "noise\n##pass one works\n##fail two does not\n ##pass no\n"
    assert dict(printed_outcomes(output, "")) == {"one works": Outcome.PASS, "two does not": Outcome.FAIL}
    assert list(printed_outcomes(output, "two")) == [("two does not", Outcome.FAIL)]
