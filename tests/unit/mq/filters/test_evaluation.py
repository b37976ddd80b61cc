"""What conditions say about messages: SQL's three-valued logic, with SQLite as a witness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.filters.evaluation import Fields, evaluate
from deltamq.mq.filters.parser import parse_filter
from tests.filters import Witness, conditions, messages

MESSAGE = Fields(
    key="k1",
    tag=None,
    headers={"region": "eu", "amount": "12.50", "count": "7", "paid": "True", "note": "50% off", "none": None},
)


@given(conditions(), st.lists(messages(), min_size=1, max_size=4))
def test_cons_09_sqlite_says_the_same(condition: object, found: list[Fields]) -> None:
    assert [evaluate(condition, message) for message in found] == Witness().answers(condition, found)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("region = 'eu'", True),
        ("region <> 'eu'", False),
        ("region < 'f' AND region >= 'ab'", True),
        ("key = 'k1' AND tag IS NULL", True),
        ("headers['key'] IS NULL", True),
        ("absent = 'x'", None),
        ("absent <> 'x'", None),
        ("none = none", None),
        ("NOT absent = 'x'", None),
        ("absent = 'x' OR region = 'eu'", True),
        ("absent = 'x' AND region = 'us'", False),
        ("absent = NULL", None),
        ("absent IS NULL", True),
        ("amount > 5", True),
        ("amount > '5'", False),
        ("amount = 12.5", True),
        ("amount = '12.5'", False),
        ("count BETWEEN 7 AND 7", True),
        ("count NOT BETWEEN 1 AND 6", True),
        ("region > 5", None),
        ("'10' > 9", True),
        ("amount * 2 - count / 2 = 21.5", True),
        ("count / 0 IS NULL", True),
        ("1e300 * 1e300 IS NULL", True),
        ("-count = -7", True),
        ("paid = TRUE", True),
        ("paid <> FALSE", True),
        ("region = TRUE", None),
        ("count IN (1, 7)", True),
        ("count IN ('07')", False),
        ("region IN ('us', NULL)", None),
        ("region NOT IN ('us', NULL)", None),
        ("region IN ('eu', NULL)", True),
        ("absent NOT IN ('x')", None),
        ("note LIKE '50!% %' ESCAPE '!'", True),
        ("note LIKE '50_%'", True),
        ("note LIKE 'OFF'", False),
        ("absent NOT LIKE '%'", None),
        ("NULL", None),
    ],
)
def test_cons_09_unknown_is_neither_true_nor_false(text: str, answer: bool | None) -> None:
    assert evaluate(parse_filter(text), MESSAGE) is answer


@pytest.mark.parametrize("text", ["inf", "NaN", " 5", "5 ", "0x5", "1_000", "٥", "5,0", "", ".", "+", "1e", "1e999"])
def test_cons_09_only_a_finite_number_from_end_to_end_counts_as_one(text: str) -> None:
    assert evaluate(parse_filter("a > 0 OR a <= 0"), Fields(headers={"a": text})) is None


def test_cons_09_a_header_beyond_exact_doubles_equals_no_whole_number() -> None:
    large = Fields(headers={"a": "9007199254740993"})
    assert evaluate(parse_filter("a = 9007199254740991"), large) is False
    assert evaluate(parse_filter("a > 9007199254740991"), large) is True
