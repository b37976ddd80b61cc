"""The checker finds what was planted, names it, and finds nothing else (README.md)."""

from __future__ import annotations

import random

import pytest

from tests.history.checker.anomalies import NAMES
from tests.history.checker.check import Reach, Verdict, check
from tests.history.checker.ops import History
from tests.history.checker.report import in_words
from tests.history.planted import PLANTED, send


@pytest.mark.parametrize("case", PLANTED)
def test_the_checker_finds_what_was_planted_and_nothing_else(case: str) -> None:
    wanted, make = PLANTED[case]
    history = make()
    checked = check(history)
    assert checked.findings.names == wanted, in_words(history, checked)
    assert checked.verdict is (Verdict.INVALID if wanted else Verdict.VALID)


def test_every_anomaly_has_a_history_in_which_it_was_planted() -> None:
    planted = {name for wanted, _ in PLANTED.values() for name in wanted}
    assert planted == set(NAMES)


@pytest.mark.parametrize("case", PLANTED)
def test_the_order_of_lines_and_of_ties_means_nothing(case: str) -> None:
    wanted, make = PLANTED[case]
    drawn = random.Random(case)
    for _ in range(5):
        history = make()
        for ops in history.lists():
            drawn.shuffle(ops)
        assert check(history).findings.names == wanted


def test_a_run_that_reached_nothing_is_no_proof() -> None:
    checked = check(History().add(send(0, "a", None)), Reach(faults=1))
    assert checked.verdict is Verdict.INVALID, "an anomaly counts in any case"
    checked = check(History(), Reach(sends=1_000, faults=3))
    assert checked.verdict is Verdict.UNKNOWN
    assert checked.missed == ["sends: 0, at least 1000 were meant", "faults: 0, at least 3 were meant"]


def test_an_anomaly_is_shown_with_what_happened_around_it() -> None:
    _, make = PLANTED["given to two at once"]
    history = make()
    said = in_words(history, check(history))
    assert "double-lease a: group g: given to 3 and 4 at once" in said
    assert said.count("pop g invisible 100 ms [('a',") == 2
    assert "send ['a']" in said
