"""The table of cases of what an append stores: new rows, repeats, gaps, fences, offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.producer import ProducerWindow
from deltamq.mq.producer import Sequence as MessageSequence
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart
from deltamq.tables.log.batch import MessageIds
from deltamq.tables.log.plan import LogView, plan, requests

BORN_LATE_MS = 2**50


def plain(count: int) -> RowsPart:
    return RowsPart(count)


def stamped(seq: int, count: int = 1, *, producer: str = "p", indexes: tuple[int, ...] | None = None) -> RowsPart:
    return RowsPart(count, ProducerStamp(producer, seq, indexes, count if indexes is None else 9))


def numbered(first: int, count: int = 1) -> RowsPart:
    """A request of a producer that counts its messages, and that the log must know from its beginning."""
    sequence = MessageSequence(epoch=0, base=first, born_ms=BORN_LATE_MS)
    return RowsPart(count, ProducerStamp("k", -1, None, count, sequence=sequence))


def view(*stored: RowsPart, fences: Mapping[str, int] | None = None, offset_max: int = 1_000) -> LogView:
    """Return a log that has these parts, from offset 0 on."""
    log = LogView(
        name="orders@broker-a",
        end_offset=0,
        fences=fences or {},
        requests=ProducerWindow(),
        known_since_ms=0,
        offset_max=offset_max,
    )
    return after(log, stored)


def after(log: LogView, parts: Sequence[RowsPart]) -> LogView:
    """Return the log with what the plan of an append of these parts stores."""
    planned = plan(parts, log)
    assert isinstance(log.requests, ProducerWindow)
    log.requests.extend(planned.requests(1))
    return replace(log, end_offset=planned.base + sum(planned.parts[at].count for at in planned.fresh))


class Case(msgspec.Struct, frozen=True):
    """An append to a log, and for each part its offset and whether it is a repeat; or the error's code."""

    says: str
    log: LogView
    parts: Sequence[RowsPart]
    places: Sequence[tuple[int, bool]] = ()
    refused: str = ""
    options: Mapping[str, object] = msgspec.field(default_factory=dict)


KNOWS_2 = {"fence_epochs": {"route": 2}}
CASES = [
    Case("rows without a producer are always new", view(plain(3)), [plain(2), plain(1)], [(3, False), (5, False)]),
    Case("a new request follows", view(stamped(1, 2)), [stamped(2)], [(2, False)]),
    Case("a stored request has its place", view(plain(1), stamped(1, 2)), [stamped(1, 2)], [(1, True)]),
    Case(
        "what is new beside a repeat follows at the end",
        view(stamped(1, 2)),
        [plain(1), stamped(1, 2), stamped(2)],
        [(2, False), (0, True), (3, False)],
    ),
    Case("a request twice in one append is stored once", view(), [stamped(1), stamped(1)], [(0, False), (0, True)]),
    Case(
        "another producer's number is another request",
        view(stamped(1)),
        [stamped(1, producer="q")],
        [(1, False)],
    ),
    Case(
        "other messages of a stored request are new",
        view(stamped(1, 2, indexes=(0, 1))),
        [stamped(1, 2, indexes=(2, 3)), stamped(1, 2, indexes=(0, 1))],
        [(2, False), (0, True)],
    ),
    Case("messages that are counted begin at 0", view(), [numbered(0, 2), numbered(2)], [(0, False), (2, False)]),
    Case(
        "a counted repeat has its place", view(numbered(0, 2)), [numbered(0, 2), numbered(2)], [(0, True), (2, False)]
    ),
    Case("a gap stores nothing", view(numbered(0, 2)), [plain(1), numbered(5)], refused="sequence_gap"),
    Case("the expected offset is the end", view(plain(3)), [plain(1)], [(3, False)], options={"expected_offset": 3}),
    Case("another end refuses", view(plain(3)), [plain(1)], refused="offset_mismatch", options={"expected_offset": 2}),
    Case("a repeat expects nothing", view(stamped(1)), [stamped(1)], [(0, True)], options={"expected_offset": 7}),
    Case("a known fence lets through", view(fences={"route": 2}), [plain(1)], [(0, False)], options=KNOWS_2),
    Case("a newer fence refuses", view(fences={"route": 3}), [plain(1)], refused="fenced", options=KNOWS_2),
    Case("a repeat is told its place behind a fence", view(stamped(1), fences={"route": 3}), [stamped(1)], [(0, True)]),
    Case("no fence concerns who names none", view(fences={"route": 3}), [plain(1)], [(0, False)]),
    Case(
        "a reset's fence binds only who names it",
        view(fences={"reset": 3}),
        [plain(1)],
        [(0, False)],
        options={"fence_epochs": {"route": 1}},
    ),
    Case("the last offset is used", view(plain(3), offset_max=5), [plain(2)], [(3, False)]),
    Case("no offset is left", view(plain(3), offset_max=5), [plain(3)], refused="offsets_exhausted"),
    Case(
        "a repeat needs no offset",
        view(stamped(1, 5), offset_max=5),
        [stamped(1, 5)],
        [(0, True)],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_an_append_stores_what_the_table_says(case: Case) -> None:
    if case.refused:
        with pytest.raises(DeltaMQError) as refused:
            plan(case.parts, case.log, **case.options)  # type: ignore[arg-type]
        assert refused.value.code == case.refused
        return
    planned = plan(case.parts, case.log, **case.options)  # type: ignore[arg-type]
    results = planned.results(MessageIds(), durable=True, version=7)
    assert [(one.base_offset, one.duplicate) for one in results] == list(case.places)
    assert [one.count for one in results] == [part.count for part in case.parts]
    assert planned.is_all_fresh is not any(duplicate for _, duplicate in case.places)


_parts = st.lists(
    st.one_of(
        st.builds(plain, st.integers(1, 3)),
        st.builds(stamped, st.integers(0, 4), st.just(2), producer=st.sampled_from("pq")),
    ),
    min_size=1,
    max_size=6,
)


@given(_parts, _parts)
def test_rely_01_offsets_are_dense_and_a_repeated_append_stores_nothing_new(
    earlier: list[RowsPart], parts: list[RowsPart]
) -> None:
    log = view(*earlier)
    planned = plan(parts, log)
    fresh = [planned.parts[at] for at in planned.fresh]
    places = [one for one in planned.results(MessageIds(), durable=True, version=1) if not one.duplicate]
    at = log.end_offset
    for place, part in zip(places, fresh, strict=True):
        assert (place.base_offset, place.count) == (at, part.count)
        at += part.count
    assert planned.requests(1) == requests(fresh, log.end_offset, 1)
    again = plan(parts, after(log, parts))
    assert all(planned.parts[at].producer is None for at in again.fresh), "every request is known now"
