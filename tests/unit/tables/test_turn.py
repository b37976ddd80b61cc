"""Turns at a partition's log: threads wait for each other, a coroutine asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from deltamq.mq.errors import Unavailable
from deltamq.tables.turn import Turn
from tests.api.running import until


def test_a_thread_may_take_its_turn_again_within_it() -> None:
    turn = Turn()
    with ThreadPoolExecutor(1) as other:
        with turn:
            with turn:
                assert not other.submit(turn.ask).result(10)
            assert not other.submit(turn.ask).result(10), "the outer one has not ended"
        assert other.submit(turn.ask).result(10)


def test_threads_wait_until_a_coroutine_gives_its_turn_back() -> None:
    turn = Turn()
    assert turn.ask() and not turn.ask()

    def take() -> str:
        with turn:
            return "taken"

    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(take)
        assert not waiting.done()
        turn.give_back()
        assert waiting.result(10) == "taken"
    assert turn.ask()


def test_the_thread_of_a_coroutine_is_refused_rather_than_to_wait_for_itself() -> None:
    turn = Turn()
    assert turn.ask()
    with pytest.raises(Unavailable, match="appended to"), turn:
        pass
    turn.give_back()
    with turn:
        pass
    assert turn.ask()


def test_turns_are_given_in_the_order_in_which_threads_began_to_wait() -> None:
    turn, order = Turn(), list[int]()
    assert turn.ask()

    def take(number: int) -> None:
        with turn:
            order.append(number)

    with ThreadPoolExecutor(8) as others:
        waiting = []
        for number in range(8):
            waiting.append(others.submit(take, number))
            until(lambda: len(turn._waiting) == len(waiting))
        turn.give_back()
        assert not turn.ask() or order == list(range(8)), "nobody comes before those who wait"
        for one in waiting:
            one.result(10)
    assert order == list(range(8))
