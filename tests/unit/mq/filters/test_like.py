"""Patterns of LIKE: held against a search of all ways to match, and linear in the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.filters.condition import Pattern, Wildcard, like_text, matches_like, parse_like
from tests.filters import patterns


def fits(text: str, pattern: Pattern) -> bool:
    """Try all ways."""
    if not pattern:
        return not text
    first, rest = pattern[0], pattern[1:]
    if first is Wildcard.ANY_TEXT:
        return any(fits(text[at:], rest) for at in range(len(text) + 1))
    if first is Wildcard.ANY_CHARACTER:
        return bool(text) and fits(text[1:], rest)
    return text.startswith(first) and fits(text[len(first) :], rest)


@given(st.text(alphabet="ab%_\\", max_size=8), patterns())
def test_cons_09_a_pattern_matches_what_one_of_all_ways_matches(text: str, pattern: Pattern) -> None:
    assert matches_like(text, pattern) is fits(text, pattern)


@given(patterns())
def test_cons_09_a_pattern_written_as_text_is_read_as_the_same_pattern(pattern: Pattern) -> None:
    assert parse_like(*like_text(pattern)) == pattern


@pytest.mark.parametrize("text", ["!", "a!b", "!!!"])
def test_cons_09_an_escape_stands_before_a_wildcard_or_itself(text: str) -> None:
    assert parse_like(text, "!") is None


class Counted(str):
    """A text that counts how many of its characters were looked at."""

    looks = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for character in str(self):
            Counted.looks += 1
            yield character


def test_cons_09_each_character_of_a_text_is_looked_at_once() -> None:
    pattern = parse_like("%a" * 500 + "_b", None)
    assert pattern is not None
    assert not matches_like(Counted("a" * 1000), pattern)
    assert Counted.looks == 1000
