"""Filters as text: what they mean, what is refused and where, and how large they may be."""

from __future__ import annotations

import pytest
from hypothesis import given

from deltamq.mq.errors import Unprocessable
from deltamq.mq.filters.condition import (
    And,
    Arithmetic,
    Column,
    Comparison,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Number,
    Operator,
    Or,
    Sign,
    Text,
    Truth,
    Wildcard,
)
from deltamq.mq.filters.parser import parse_filter
from deltamq.mq.limits import FILTER_CHARS_MAX, FILTER_DEPTH_MAX, FILTER_TERMS_MAX
from tests.filters import conditions, filter_text

A, B = Header("a"), Header("b")


def equal(left: object, right: object) -> Comparison:
    return Comparison(Operator.EQUAL, left, right)


@given(conditions())
def test_cons_09_a_condition_written_as_text_is_read_as_the_same_condition(condition: object) -> None:
    assert parse_filter(filter_text(condition)) == condition


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("a = 'x'", equal(A, Text("x"))),
        ("a='it''s'", equal(A, Text("it's"))),
        ("a != 5", Comparison(Operator.NOT_EQUAL, A, Number(5))),
        ("5 <= a", Comparison(Operator.AT_MOST, Number(5), A)),
        ("a = -.5e1", equal(A, Number(-5))),
        ("a = -0", equal(A, Number(0))),
        ("key = 'k' AND tag = 't'", And((equal(Column.KEY, Text("k")), equal(Column.TAG, Text("t"))))),
        ("\"key\" = headers['tag']", equal(Header("key"), Header("tag"))),
        ('"a""b-c" = \'\'', equal(Header('a"b-c'), Text(""))),
        ("headers = headers [ 'it''s' ]", equal(Header("headers"), Header("it's"))),
        ("KEY = Tag", equal(Header("KEY"), Header("Tag"))),
        ("a is null or b Is Not Null", Or((IsNull(A), Not(IsNull(B))))),
        ("a IN (1, -2, 'x', true, NULL)", In(A, (Number(1), Number(-2), Text("x"), Truth(True), Truth(None)))),
        ("a NOT IN ('x')", Not(In(A, (Text("x"),)))),
        (
            "a BETWEEN 1 AND 2",
            And((Comparison(Operator.AT_LEAST, A, Number(1)), Comparison(Operator.AT_MOST, A, Number(2)))),
        ),
        ("a LIKE 'x%%_'", Like(A, ("x", Wildcard.ANY_TEXT, Wildcard.ANY_CHARACTER))),
        ("a NOT LIKE '!%!!' ESCAPE '!'", Not(Like(A, ("%!",)))),
        ("NOT a = 'x' AND b = 'y'", And((Not(equal(A, Text("x"))), equal(B, Text("y"))))),
        ("a = 1 OR a = 2 AND b = 3", Or((equal(A, Number(1)), And((equal(A, Number(2)), equal(B, Number(3))))))),
        ("(a = 1 OR a = 2) AND TRUE", And((Or((equal(A, Number(1)), equal(A, Number(2)))), Truth(True)))),
        (
            "a - 1 - b * 2 > 0",
            Comparison(
                Operator.GREATER,
                Arithmetic(Sign.MINUS, Arithmetic(Sign.MINUS, A, Number(1)), Arithmetic(Sign.TIMES, B, Number(2))),
                Number(0),
            ),
        ),
        ("-a = 1", equal(Arithmetic(Sign.MINUS, Number(0), A), Number(1))),
        ("a = TRUE AND NULL", And((equal(A, Truth(True)), Truth(None)))),
    ],
)
def test_cons_09_filters_are_read_as_sql_reads_them(text: str, condition: object) -> None:
    assert parse_filter(text) == condition


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "a name"),
        ("a", 1, "a comparison"),
        ("'x'", 3, "a comparison"),
        ("a AND b = 1", 2, "a comparison"),
        ("(a) OR b = 1", 4, "a comparison"),
        ("a = ", 4, "a name"),
        ("a = 'x", 4, "a closing '"),
        ('"a = 1', 0, 'a closing "'),
        ("a ! b", 2, "a name, a value or an operator"),
        ("a = 1; b", 5, "a name, a value or an operator"),
        ("a = 1 b = 2", 6, "AND, OR or the end"),
        ("(a = 1", 6, "an operator or )"),
        ("a = 1)", 5, "AND, OR or the end"),
        ("a = (b = 1)", 4, "a value"),
        ("(a = 1) + 2 = 3", 0, "a value"),
        ("a NOT = 1", 6, "IN, BETWEEN or LIKE"),
        ("a IS 1", 5, "NULL"),
        ("a IN 1", 5, "("),
        ("a IN ()", 6, "a text in quotes"),
        ("a IN (b)", 6, "a text in quotes"),
        ("a IN (-'x')", 7, "a number"),
        ("a IN (1", 7, ", or )"),
        ("a + 1 IN (TRUE)", 10, "a number or a text"),
        ("a BETWEEN 1", 11, "AND"),
        ("a BETWEEN 1 AND TRUE", 16, "a number or a text"),
        ("TRUE BETWEEN 1 AND 2", 0, "a number or a text"),
        ("a LIKE b", 7, "a pattern in quotes"),
        ("a + 1 LIKE 'x'", 0, "a text or a name"),
        ("a LIKE 'x' ESCAPE 'xx'", 18, "one character"),
        ("a LIKE 'x' ESCAPE '%'", 18, "one character"),
        ("a LIKE 'x!' ESCAPE '!'", 7, "%, _ or ! behind each !"),
        ("a LIKE '!x' ESCAPE '!'", 7, "%, _ or ! behind each !"),
        ("a < TRUE", 2, "= or <>"),
        ("a + 1 = TRUE", 8, "a number or a text"),
        ("TRUE = 1", 7, "TRUE or FALSE"),
        ("a + FALSE = 1", 4, "a number"),
        ("a = 1e999", 4, "a number that a double can hold"),
        ("a = 9007199254740992", 4, "a whole number"),
        ("headers[a] = 1", 8, "the name of a header"),
        ("headers['a' = 1", 12, "]"),
        ("a = 'x\ud800'", 6, "a character of Unicode"),
        ("ä = 1", 0, "a name"),
    ],
)
def test_cons_09_a_wrong_filter_is_refused_with_its_place(text: str, position: int, expected: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        parse_filter(text)
    assert (refused.value.code, refused.value.field) == ("invalid_filter", "filter")
    assert refused.value.extra["position"] == position
    assert str(refused.value.extra["expected"]).startswith(expected)
    assert f"position {position}" in refused.value.detail and expected in refused.value.detail


@pytest.mark.parametrize(
    ("most", "too_many"),
    [
        ("(" * FILTER_DEPTH_MAX + "a = 1" + ")" * FILTER_DEPTH_MAX, "(" * (FILTER_DEPTH_MAX + 1) + "a = 1"),
        ("NOT " * FILTER_DEPTH_MAX + "TRUE", "NOT " * (FILTER_DEPTH_MAX + 1) + "TRUE"),
        ("a = " + "- " * FILTER_DEPTH_MAX + "b", "a = " + "- " * (FILTER_DEPTH_MAX + 1) + "b"),
        (" OR ".join(["a=1"] * (FILTER_TERMS_MAX // 2)), " OR ".join(["a=1"] * (FILTER_TERMS_MAX // 2 + 1))),
        ("a = ''".ljust(FILTER_CHARS_MAX), "a = ''".ljust(FILTER_CHARS_MAX + 1)),
    ],
    ids=["parentheses", "NOT", "minus", "terms", "characters"],
)
def test_cons_09_filters_are_bounded(most: str, too_many: str) -> None:
    parse_filter(most)
    with pytest.raises(Unprocessable, match="expected at most"):
        parse_filter(too_many)


def test_cons_09_items_of_a_list_are_bounded_by_the_length_alone() -> None:
    condition = parse_filter(f"a IN ({','.join('1' * 2000)})")
    assert isinstance(condition, In) and len(condition.items) == 2000
