"""The claim that counts: the last one, for all who look (SPARK-22)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.streams import Claim, claim_that_counts

A1, B2, B1 = Claim(1, "a"), Claim(2, "b"), Claim(1, "b")


@pytest.mark.parametrize(
    ("there", "run", "claimed", "counts"),
    [
        pytest.param([], "a", False, A1, id="the first one"),
        pytest.param([A1], "a", True, A1, id="its own counts"),
        pytest.param([A1], "b", False, B2, id="whoever starts later takes over"),
        pytest.param([A1, B2], "a", True, B2, id="an earlier one never comes back"),
        pytest.param([A1, B2], "a", False, B2, id="nor does one that forgot that it has claimed"),
        pytest.param([B2], "a", True, B2, id="nor after its claim is gone"),
        pytest.param([], "a", True, A1, id="a folder that was emptied by hand"),
        pytest.param([A1, B1], "a", True, B1, id="one of two that claimed at once"),
    ],
)
def test_spark_22_a_claim_counts(there: list[Claim], run: str, claimed: bool, counts: Claim) -> None:
    assert claim_that_counts(there, run, claimed=claimed) == counts


@given(st.integers(2, 5), st.integers(0, 10**6))
def test_spark_22_of_runs_that_look_and_claim_in_any_order_exactly_one_goes_on(runs: int, seed: int) -> None:
    chance = random.Random(seed)
    there: set[Claim] = set()
    goes_on = dict.fromkeys("abcde"[:runs], False)
    claimed: set[str] = set()
    planned: dict[str, Claim] = {}
    ended: set[str] = set()
    for _ in range(60):
        run = chance.choice(list(goes_on))
        if run in ended:
            continue
        if run in planned:  # what it read a while ago
            there.add(planned.pop(run))
            claimed.add(run)
            continue
        counts = claim_that_counts(there, run, claimed=run in claimed)
        goes_on[run] = counts in there and counts.run == run
        if counts not in there:
            planned[run] = counts
        elif counts.run != run:
            ended.add(run)
    for run in set(goes_on) - ended:
        while (counts := claim_that_counts(there, run, claimed=run in claimed)) not in there:
            there.add(counts)
            claimed.add(run)
    last = [run for run in goes_on if run not in ended and max(there).run == run]
    assert len(last) == 1, "the others find at their next look that it is no longer their turn"


def test_spark_22_a_claim_is_the_name_of_a_file() -> None:
    claim = Claim(7, "0f-3")
    assert claim.name == "00000000000000000007-0f-3.json"
    assert Claim.of(claim.name) == claim
    others = ["7-a.json", "00000000000000000007-a", "00000000000000000007.json", ".tmp-1", ""]
    assert [Claim.of(name) for name in others] == [None] * 5
