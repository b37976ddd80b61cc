"""The filter of a request: tags, a condition, both, or neither."""

from __future__ import annotations

from deltamq.api.wire.fields import message_filter
from deltamq.mq.filters.parser import parse_filter


def test_a_filter_is_a_star_or_tags() -> None:
    assert message_filter(None, None) is None and message_filter(" * ", None) is None
    found = message_filter("a || b:c", None)
    assert found is not None and found.tags.to_pylist() == ["a", "b:c"] and found.condition is None


def test_cons_09_a_condition_stands_beside_tags_or_alone() -> None:
    alone, beside = message_filter("*", "a = 1"), message_filter("a", "a = 1")
    assert alone is not None and alone.tags is None and alone.condition == parse_filter("a = 1")
    assert beside is not None and beside.tags.to_pylist() == ["a"] and beside.condition == alone.condition
