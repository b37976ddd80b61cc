"""RETRY-8: the state of a dead letter follows from its marks, in whatever ranges they came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Corrupt
from deltamq.mq.queue.dead_letters import (
    DeadMark,
    Deleted,
    LetterMarks,
    SentBack,
    dead_mark_from_json,
    dead_mark_to_json,
)

END = 30
ranges = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda pair: (min(pair), max(pair))), min_size=1, max_size=3
).map(tuple)
marks = st.lists(
    st.builds(SentBack, ranges, st.sampled_from(["origin", "retry"]), st.integers(0, 3), st.sampled_from(["", "ada"]))
    | st.builds(Deleted, ranges, st.integers(0, 3)),
    max_size=8,
)


def covers(mark: DeadMark, offset: int) -> bool:
    return any(low <= offset < high for low, high in mark.ranges)


@given(marks)
def test_retry_08_a_dead_letter_is_new_sent_back_or_deleted(given_marks: list[DeadMark]) -> None:
    folded = LetterMarks()
    for mark in given_marks:
        before = folded
        folded = folded.copy()
        folded.add(mark)
        assert before is not folded
    for offset in range(END):
        its = [mark for mark in given_marks if covers(mark, offset)]
        sent = [mark for mark in its if isinstance(mark, SentBack)]
        expected = "deleted" if len(sent) < len(its) else "sent_back" if sent else "new"
        assert folded.state(offset) == expected
        assert folded.sent(offset) == ((sent[-1].time_ms, sent[-1].by) if sent else None)
    for low, high in ((0, END), (7, 19)):
        sent_back = {at for begin, end in folded.sent_ranges(low, high) for at in range(begin, end)}
        assert sent_back == {at for at in range(low, high) if folded.sent(at) is not None}
        deleted = {at for begin, end in folded.deleted_ranges(low, high) for at in range(begin, end)}
        assert deleted == {at for at in range(low, high) if folded.state(at) == "deleted"}


@given(marks, st.integers(0, END))
def test_retry_08_marks_of_removed_dead_letters_are_forgotten_alone(given_marks: list[DeadMark], low: int) -> None:
    whole, cut = LetterMarks(), LetterMarks()
    for mark in given_marks:
        whole.add(mark)
        cut.add(mark)
    cut.drop_below(low)
    later = range(low, END)
    assert [(cut.state(at), cut.sent(at)) for at in later] == [(whole.state(at), whole.sent(at)) for at in later]
    assert list(cut.sent_ranges(0, low)) == list(cut.deleted_ranges(0, low)) == []


@given(st.integers(1, 1_000))
def test_retry_08_letters_that_are_sent_at_once_take_one_range(count: int) -> None:
    folded = LetterMarks()
    for at in range(0, count * 10, 10):
        folded.add(SentBack(((at, at + 10),), "origin", 5, "ada"))
    assert list(folded.sent_ranges(0, count * 10)) == [(0, count * 10)]
    assert len(folded._lows) == 1


@pytest.mark.parametrize("mark", [SentBack(((0, 3), (7, 8)), "retry", 9, "ada"), Deleted(((2, 5),), 9)])
def test_retry_08_a_mark_is_read_as_it_was_written(mark: DeadMark) -> None:
    assert dead_mark_from_json(*dead_mark_to_json(mark)) == mark


@pytest.mark.parametrize(("tag", "body"), [("sent_back", b"{}"), ("deleted", b"{]"), ("eaten", b"{}")])
def test_retry_08_a_damaged_mark_is_no_mark(tag: str, body: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        dead_mark_from_json(tag, body)
    assert caught.value.code == "dead_mark_corrupt"
