"""Bytes of a connection: frames come out as they came in, however they were cut, and nobody changes them later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.kafka.server.arrival import Inbox


@given(frames=st.lists(st.binary(max_size=40), max_size=20), cuts=st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_frames_are_taken_as_they_were_sent(frames: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(frames)
    inbox, taken, at, turn = Inbox(), list[memoryview](), 0, 0
    waiting = list(frames)
    while waiting:
        while waiting and len(waiting[0]) <= len(inbox):
            first = waiting.pop(0)
            assert inbox.first(len(first)) == first
            taken.append(inbox.take(len(first)))
        if waiting:
            size = cuts[turn % len(cuts)]
            inbox.put(sent[at : at + size])
            at, turn = at + size, turn + 1
    assert [bytes(one) for one in taken] == frames, "also after what came behind them"


def test_a_frame_in_one_piece_is_not_copied() -> None:
    inbox, data = Inbox(), b"abcdefgh"
    inbox.put(data)
    assert inbox.take(3).obj is data and inbox.take(5).obj is data
    assert len(inbox) == 0
    inbox.put(b"rest")
    inbox.clear()
    assert len(inbox) == 0 and inbox.first(4) == b""
