"""Bytes of a connection: frames come out as they came in, however they were cut, and nobody changes them later."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from api.kafka.server.inbox import Inbox


@st.composite
def _frames(draw: st.DrawFn) -> list[bytes]:
    """Frames of a few bytes, and some that come in several pieces which are not put together."""
    few = st.binary(max_size=40)
    many = st.builds(lambda one, times: one * times, st.binary(min_size=1, max_size=40), st.integers(200, 1_000))
    return draw(st.lists(few | many, max_size=20))


@given(frames=_frames(), cuts=st.lists(st.integers(1, 60) | st.integers(5_000, 20_000), min_size=1, max_size=20))
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


def test_bytes_that_come_one_by_one_take_no_memory_of_their_own() -> None:
    inbox = Inbox()
    tracemalloc.start()
    try:
        for number in range(20_000):
            inbox.put(bytes([number % 256]) + b"x")
        assert tracemalloc.get_traced_memory()[0] < 2 * len(inbox)
    finally:
        tracemalloc.stop()
    assert bytes(inbox.take(40_000)) == b"".join(bytes([number % 256]) + b"x" for number in range(20_000))
