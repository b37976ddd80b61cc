"""What DeltaMQ stored itself is either as expected or damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec
import pytest

from deltamq.mq.errors import Corrupt, Refused
from deltamq.mq.stored_json import corrupt_when_damaged, form, forms_of, integer, mapping, reader


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    kind: ClassVar[str] = "happened"
    what: str
    ranges: tuple[tuple[int, int], ...] = ()


class Short(msgspec.Struct):
    w: str


EVENT = Happened(what="rain", ranges=((1, 2),))


def test_an_event_is_stored_field_by_field_under_its_kind() -> None:
    (stored,) = forms_of(Happened).items()
    assert (stored[0], stored[1].to_json(EVENT)) == ("happened", b'{"what":"rain","ranges":[[1,2]]}')
    assert stored[1].from_json(b'{"what":"rain","ranges":[[1,2]],"newer":{}}') == EVENT


def test_a_form_of_its_own_is_read_and_written_by_its_struct() -> None:
    short = form(Short, lambda stored: Happened(what=stored.w), lambda event: Short(event.what))
    assert short.to_json(EVENT) == b'{"w":"rain"}'
    assert short.from_json(b'{"w":"rain"}') == Happened(what="rain")


def test_a_reader_takes_values_that_were_parsed_before() -> None:
    assert reader(Happened)({"what": "rain", "ranges": [[1, 2]]}) == EVENT


@pytest.mark.parametrize(
    ("reader", "good", "bad"),
    [
        (mapping, {"a": 1}, [["a", 1]]),
        (integer, 0, "0"),
        (integer, 7, 7.0),
        (integer, -1, True),
        (reader(Happened), {"what": "rain"}, {"what": 7}),
        (reader(Happened), {"what": "rain"}, {}),
        (forms_of(Happened)["happened"].from_json, b'{"what":"rain"}', b'{"what":"rain"'),
        (forms_of(Happened)["happened"].from_json, b'{"what":"rain"}', b'{"what":"\xff"}'),
    ],
)
def test_a_value_of_another_type_is_damage(reader: Callable[[object], object], good: object, bad: object) -> None:
    assert reader(good) in (good, Happened(what="rain"))
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
        _, _ = [1]


def test_our_own_errors_pass_through() -> None:
    with pytest.raises(Refused), corrupt_when_damaged("it", code="c"):
        raise Refused
