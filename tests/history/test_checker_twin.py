"""The checker against a twin that looks at every pair, and against histories in which nothing is wrong."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.brute import brute
from tests.history.checker.anomalies import Findings
from tests.history.checker.check import Verdict, check
from tests.history.checker.ops import History
from tests.history.checker.report import in_words
from tests.history.invented import invent, spoil

#: What the twin knows.
COMPARED = {
    "nonmonotonic-send",
    "realtime-order",
    "out-of-sequence",
    "lost-write",
    "unseen",
    "nonmonotonic-poll",
    "poll-skip",
    "int-nonmonotonic-poll",
    "int-poll-skip",
    "end-regression",
    "double-lease",
    "redelivered-after-ack",
    "stale-ack-accepted",
    "two-consumers",
    "key-order",
}
seeds = st.integers(0, 2**32)


def told(findings: Findings) -> set[tuple[str, str]]:
    """What the checker found, as the twin says it."""
    found = set()
    for name in COMPARED:
        for one in findings.anomalies.get(name, ()):
            subject = one.where
            if name in ("lost-write", "unseen"):
                subject = one.said.split()[0]
            elif name == "key-order":
                subject = one.where.split()[-1]
            found.add((name, subject))
    return found


@settings(max_examples=settings.default.max_examples * 3)
@given(seed=seeds, steps=st.integers(1, 250))
def test_a_history_in_which_nothing_is_wrong_is_valid(seed: int, steps: int) -> None:
    history = invent(seed, steps)
    checked = check(history)
    assert checked.verdict is Verdict.VALID, in_words(history, checked)
    assert brute(history) == set()


@settings(max_examples=settings.default.max_examples * 6)
@given(seed=seeds, steps=st.integers(1, 80), change=seeds)
def test_the_checker_finds_what_a_look_at_every_pair_finds(seed: int, steps: int, change: int) -> None:
    history = spoil(invent(seed, steps), change)
    checked = check(history)
    assert told(checked.findings) == brute(history), in_words(history, checked)


def test_changes_are_found() -> None:
    """The comparison above is about something: most histories that were changed are wrong."""
    found: set[str] = set()
    red = 0
    for seed in range(300):
        names = check(spoil(invent(seed, 80), seed)).findings.names
        red += bool(names)
        found |= names
    assert red > 150
    assert found >= COMPARED - {"int-nonmonotonic-poll", "stale-ack-accepted"}


@pytest.mark.long
def test_two_hundred_thousand_operations_are_checked_in_seconds() -> None:
    history = invent(1, 20_000)
    whole = History()
    for name in ("sends", "polls", "ends", "pops", "settles", "handled", "scans"):
        getattr(whole, name).extend(getattr(history, name) * 10)
    began = time.process_time()
    check(whole)
    assert time.process_time() - began < 30
