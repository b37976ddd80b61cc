"""A call that is late is asked again beside the first one, and the first answer counts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from deltamq.tables.store.hedged import BlockingLoop, Pace, hedged


class Quick(Pace):
    """Asks again soon."""

    def patience_s(self, nbytes: int) -> float:
        return 0.001


class Calls:
    """Calls in the order in which they were asked; each is answered by the test."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[str]] = []

    def __call__(self) -> Awaitable[str]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    async def are(self, count: int) -> None:
        while len(self.asked) < count:
            await asyncio.sleep(0)


def run(test: Callable[[Calls], Awaitable[None]]) -> None:
    async def inside() -> None:
        await asyncio.wait_for(test(Calls()), 30)

    asyncio.run(inside())


def test_the_first_answer_counts_and_the_others_are_cancelled() -> None:
    async def test(calls: Calls) -> None:
        outcome = asyncio.ensure_future(hedged(calls, Quick()))
        await calls.are(5)
        assert [call.cancelled() for call in calls.asked] == [True, True, False, False, False], "three are under way"
        calls.asked[3].set_result("fourth")
        assert await outcome == "fourth"
        assert [call.cancelled() for call in calls.asked[2:]] == [True, False, True]

    run(test)


def test_a_call_that_is_in_time_is_asked_once() -> None:
    async def test(calls: Calls) -> None:
        outcome = asyncio.ensure_future(hedged(calls, Pace()))
        await calls.are(1)
        calls.asked[0].set_result("first")
        assert await outcome == "first" and len(calls.asked) == 1

    run(test)


def test_an_error_counts_only_if_no_other_call_is_under_way() -> None:
    async def test(calls: Calls) -> None:
        outcome = asyncio.ensure_future(hedged(calls, Quick()))
        await calls.are(3)
        calls.asked[0].set_exception(OSError("first"))
        calls.asked[2].set_result("third")
        assert await outcome == "third"

    async def all_fail(calls: Calls) -> None:
        outcome = asyncio.ensure_future(hedged(calls, Quick()))
        await calls.are(3)
        for call in calls.asked:
            call.set_exception(OSError("no"))
        with pytest.raises(OSError, match="no"):
            await outcome

    async def at_once(calls: Calls) -> None:
        outcome = asyncio.ensure_future(hedged(calls, Pace()))
        await calls.are(1)
        calls.asked[0].set_exception(OSError("no"))
        with pytest.raises(OSError, match="no"):
            await outcome
        assert len(calls.asked) == 1, "the client repeats what failed, not this"

    for case in (test, all_fail, at_once):
        run(case)


def test_a_store_that_answers_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltamq.tables.store.hedged._GIVE_UP_S", 0.5)

    async def test(calls: Calls) -> None:
        with pytest.raises(TimeoutError):
            await hedged(calls, Quick())
        assert len(calls.asked) > 1 and all(call.cancelled() for call in calls.asked)

    run(test)


def test_who_gives_up_cancels_all_calls() -> None:
    async def test(calls: Calls) -> None:
        outcome = asyncio.ensure_future(hedged(calls, Quick()))
        await calls.are(2)
        outcome.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outcome
        assert all(call.cancelled() for call in calls.asked)

    run(test)


def test_patience_follows_what_calls_take() -> None:
    pace = Pace()
    for _ in range(100):
        pace.note(0.05)
    fast = pace.patience_s(0)
    assert 0.2 < fast < 0.3 and pace.patience_s(2_000_000) == fast + 1
    for took_s in (0.4, 0.6) * 50:
        pace.note(took_s)
    assert 1 < pace.patience_s(0) < 5
    for _ in range(100):
        pace.note(60)
    assert pace.patience_s(0) == 5


def test_a_blocking_caller_gets_result_and_error_also_in_a_forked_process() -> None:
    loop = BlockingLoop()

    async def answer() -> int:
        await asyncio.sleep(0)
        return os.getpid()

    async def error() -> int:
        raise OSError("no")

    assert loop.run(answer()) == os.getpid()
    with pytest.raises(OSError, match="no"):
        loop.run(error())
    pid = os.fork()
    if pid == 0:
        os._exit(0 if loop.run(answer()) == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
