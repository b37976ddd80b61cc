"""What DeltaMQ stored itself is either as expected or damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mq.errors import Corrupt, Refused
from mq.stored_json import array, corrupt_when_damaged, integer, mapping, text


@pytest.mark.parametrize(
    ("reader", "good", "bad"),
    [
        (mapping, {"a": 1}, [["a", 1]]),
        (array, [1], {"a": 1}),
        (array, [], "text"),
        (text, "a", 1),
        (text, "", None),
        (integer, 0, "0"),
        (integer, 7, 7.0),
        (integer, -1, True),
    ],
)
def test_a_value_of_another_type_is_damage(reader: Callable[[object], object], good: object, bad: object) -> None:
    assert reader(good) == good
    with (
        pytest.raises(Corrupt, match="the thing is damaged") as corrupt,
        corrupt_when_damaged("the thing", code="thing_corrupt"),
    ):
        reader(bad)
    assert corrupt.value.code == "thing_corrupt"


def test_a_missing_field_and_a_wrong_length_are_damage() -> None:
    with pytest.raises(Corrupt), corrupt_when_damaged("it", code="c"):
        mapping({})["name"]
    with pytest.raises(Corrupt), corrupt_when_damaged("it", code="c"):
        _, _ = array([1])


def test_our_own_errors_pass_through() -> None:
    with pytest.raises(Refused), corrupt_when_damaged("it", code="c"):
        raise Refused
