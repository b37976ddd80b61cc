"""A client's run of one partition in order (SPEC ORDER-3, ORDER-5 to ORDER-10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.order.authorization import Authorization
from deltamq.mq.order.orderly import (
    Fetch,
    MoveAway,
    OnFailure,
    OrderlyRun,
    OrderlySettings,
    Process,
    Right,
    RunState,
    Stop,
    Verdict,
    Wait,
    Yield,
    suspend_ms,
)
from deltamq.mq.order.pull_lock import ClientLock

FOREVER = 10**9
SUCCESS, SUSPEND = Verdict.SUCCESS, Verdict.SUSPEND


class Client:
    """A run, and the parts of its right."""

    def __init__(self, *offsets: int, attempts: int = 0, **changed: Any) -> None:
        self.authorization = Authorization()
        self.authorization.granted(0, FOREVER, 0)
        self.lock = ClientLock(1, FOREVER)
        self.right = Right(self.authorization, self.lock)
        self.run = OrderlyRun(self.right, 0, OrderlySettings(**changed), 0, attempts=attempts)
        self.run.fetched(offsets, max(offsets, default=-1) + 1)

    def fails(self, now_ms: int, **other: Any) -> MoveAway | None:
        assert isinstance(self.run.next(now_ms), Process)
        return self.run.finished(SUSPEND, now_ms, **other)


def test_order_07_success_commits_and_goes_on() -> None:
    run = Client(0, 1, batch_messages=1).run
    assert run.next(0) == Process((0,), 1)
    assert run.finished(SUCCESS, 1) is None
    assert run.position == 1
    assert run.next(1) == Process((1,), 1)
    run.finished(SUCCESS, 2)
    assert (run.position, run.next(2)) == (2, Fetch(2))
    run.fetched([], 9)
    assert run.position == 9, "what was filtered out is consumed (CONS-3)"


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 1_000), (-1, 1_000), (0, 10), (9, 10), (10, 10), (30_000, 30_000), (30_001, 30_000)]
)
def test_order_07_a_suspension_has_bounds(asked: int | None, expected: int) -> None:
    assert suspend_ms(asked) == expected


def test_order_07_suspended_messages_come_again_and_nothing_overtakes() -> None:
    client = Client(0, 1, 2, batch_messages=2)
    client.fails(5)
    client.run.fetched([3], 4)
    assert client.run.next(1_004) == Wait(1_005)
    assert client.run.next(1_005) == Process((0, 1), 2)
    client.run.finished(SUSPEND, 1_005, asked_ms=20)
    assert client.run.next(1_024) == Wait(1_025)
    assert client.run.position == 0


def test_order_07_what_succeeded_of_a_batch_that_fails_is_done() -> None:
    client = Client(0, 1, 2, batch_messages=3)
    client.fails(0, done=2)
    assert client.run.position == 2
    assert client.run.next(1_000) == Process((2,), 2)


def test_order_08_a_strict_topic_repeats_in_place_for_ever() -> None:
    client = Client(0, on_failure=OnFailure.of(strict=True), max_attempts=2)
    for attempt in range(50):
        assert client.run.next(attempt * 1_000) == Process((0,), attempt + 1)
        assert client.run.finished(SUSPEND, attempt * 1_000) is None
        client.run.begin_turn(attempt * 1_000)


def test_order_08_after_the_last_attempt_it_is_a_dead_letter_and_the_partition_goes_on() -> None:
    client = Client(0, 1, max_attempts=2)
    assert client.fails(0) is None
    assert client.fails(1_000) == MoveAway((0,), 2, dead=True)
    client.run.moved(True, 1_001)
    assert client.run.position == 1
    assert client.run.next(1_001) == Process((1,), 1)


def test_order_08_a_dead_letter_that_cannot_be_stored_is_tried_again_in_place() -> None:
    client = Client(0, 1, max_attempts=1)
    assert client.fails(0) == MoveAway((0,), 1, dead=True)
    client.run.moved(False, 5)
    assert client.run.position == 0
    assert client.run.next(1_004) == Wait(1_005)
    assert client.fails(1_005) == MoveAway((0,), 2, dead=True)


def test_order_08_best_tried_order_sends_a_failure_to_the_retry_topic_and_goes_on() -> None:
    client = Client(0, 1, on_failure=OnFailure.of(strict=False, best_tried=OnFailure.RETRY_TOPIC))
    assert client.fails(0) == MoveAway((0,), 1, dead=False)
    client.run.moved(True, 1)
    assert client.run.next(1) == Process((1,), 1)


def test_order_08_a_listener_may_condemn_a_message_of_any_topic() -> None:
    client = Client(0, on_failure=OnFailure.IN_PLACE)
    client.run.next(0)
    assert client.run.finished(Verdict.DEAD, 0) == MoveAway((0,), 1, dead=True)


def test_order_08_attempts_of_clients_before_count() -> None:
    client = Client(0, 1, attempts=1, max_attempts=3)
    assert client.run.failures == 1
    assert client.run.next(0) == Process((0,), 2)
    assert client.run.failures == 1, "this one has not failed yet"
    assert client.run.finished(SUSPEND, 0) is None
    assert client.run.failures == 2
    assert client.fails(1_000) == MoveAway((0,), 3, dead=True)
    assert client.run.failures == 3
    client.run.moved(True, 1_000)
    assert (client.run.position, client.run.failures) == (1, 0)
    assert client.run.next(1_000) == Process((1,), 1)


def test_order_08_attempts_count_for_the_message_at_the_committed_offset_alone() -> None:
    client = Client(2, attempts=9)
    assert client.run.failures == 0, "what was at offset 0 is gone, or filtered out"
    assert client.run.next(0) == Process((2,), 1)


def test_order_08_what_has_ended_three_clients_is_not_heard_again() -> None:
    client = Client(0, 1, 2, attempts=3, max_attempts=3, batch_messages=3)
    assert client.run.next(0) == MoveAway((0,), 3, dead=True)
    client.run.moved(True, 0)
    assert client.run.next(0) == Process((1,), 1)


@pytest.mark.parametrize("attempts", [1, 2])
def test_order_08_what_stood_at_the_committed_offset_when_a_client_died_may_be_innocent(attempts: int) -> None:
    run = Client(0, attempts=attempts, max_attempts=1).run
    assert run.next(0) == Process((0,), attempts + 1), "the dead one may have been further"
    assert run.finished(SUSPEND, 0) == MoveAway((0,), attempts + 1, dead=True)


def test_order_08_near_what_may_have_ended_clients_each_message_is_committed_and_goes_alone() -> None:
    client = Client(*range(400), attempts=2, batch_messages=10)
    for offset in range(256):
        assert client.run.is_careful
        assert client.run.next(0) == Process((offset,), 3 if offset == 0 else 1)
        client.run.finished(SUCCESS, 0)
    assert not client.run.is_careful
    assert client.run.next(0) == Process(tuple(range(256, 266)), 1)


def test_order_08_in_a_strict_topic_attempts_of_others_change_nothing() -> None:
    run = Client(0, attempts=50, max_attempts=3, on_failure=OnFailure.IN_PLACE).run
    assert not run.is_careful and run.failures == 0
    assert run.next(0) == Process((0,), 1)
    run.finished(SUSPEND, 0)
    assert run.failures == 0


def test_order_08_in_best_tried_order_what_ended_clients_goes_to_the_retry_topic() -> None:
    run = Client(0, attempts=3, max_attempts=3, on_failure=OnFailure.RETRY_TOPIC).run
    assert run.next(0) == MoveAway((0,), 3, dead=False)


def test_order_09_a_run_yields_after_60_s() -> None:
    run = Client(0, 1).run
    assert run.next(59_999) == Process((0,), 1)
    run.finished(SUCCESS, 60_000)
    assert run.next(60_000) == Yield()
    run.begin_turn(60_001)
    assert run.next(60_001) == Process((1,), 1)


def test_order_06_a_run_is_processed_by_one_thread_at_a_time() -> None:
    run = Client(0, 1).run
    run.next(0)
    with pytest.raises(AssertionError, match="processing"):
        run.next(0)


def test_order_03_nothing_is_begun_after_the_authorization() -> None:
    client = Client(0)
    client.authorization.until_ms = 100
    assert client.run.next(100) == Stop(RunState.LOST)
    client.authorization.granted(0, FOREVER, 100)
    assert client.run.next(101) == Stop(RunState.LOST), "an authorization that comes back is another one"


def test_order_10_a_result_without_authorization_or_lock_is_discarded() -> None:
    for lose in ("authorization", "lock"):
        client = Client(0)
        client.run.next(0)
        if lose == "lock":
            client.lock.lose()
        else:
            client.authorization.until_ms = 100
            client.authorization.granted(200, FOREVER, 300)
        assert client.run.finished(SUCCESS, 300) is None
        assert (client.run.position, client.run.state) == (0, RunState.LOST)
        assert not client.run.may_commit(300)


def test_order_10_a_result_is_discarded_when_a_commit_found_the_right_over_before() -> None:
    """The position is committed by another thread, while the listener runs or a message is appended elsewhere."""
    client = Client(0)
    client.run.next(0)
    client.lock.lose()
    assert not client.run.may_commit(1)
    assert client.run.finished(SUCCESS, 2) is None
    assert (client.run.position, client.run.next(2)) == (0, Stop(RunState.LOST))
    client = Client(0, max_attempts=1)
    client.fails(0)
    client.lock.lose()
    assert not client.run.may_commit(1)
    client.run.moved(True, 2)
    assert (client.run.position, client.run.next(2)) == (0, Stop(RunState.LOST))


def test_order_10_a_dead_letter_that_was_stored_too_late_moves_nothing() -> None:
    client = Client(0, max_attempts=1)
    client.fails(0)
    client.lock.lose()
    client.run.moved(True, 1)
    assert client.run.next(1) == Stop(RunState.LOST)


def test_order_05_what_is_under_way_at_a_handover_is_finished_and_committed_and_nothing_more_is_begun() -> None:
    client = Client(0, 1)
    client.run.next(0)
    client.right.allocated = False
    client.run.finished(SUCCESS, 1)
    assert client.run.next(1) == Stop(RunState.HANDED_OVER)
    assert (client.run.position, client.run.may_commit(1)) == (1, True)
    client.lock.lose()
    assert not client.run.may_commit(1)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.sampled_from([SUCCESS, SUSPEND, Verdict.DEAD]), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("fetch"), st.lists(st.integers(1, 3), max_size=4)),
        st.tuples(st.just("pass"), st.integers(0, 70_000)),
    ),
    max_size=40,
)


@given(steps=steps, batch=st.integers(1, 3), on_failure=st.sampled_from(OnFailure), max_attempts=st.integers(1, 3))
def test_order_07_messages_end_in_order_and_the_position_is_before_all_that_have_not(
    steps: list[tuple[Any, ...]], batch: int, on_failure: OnFailure, max_attempts: int
) -> None:
    run = Client(batch_messages=batch, on_failure=on_failure, max_attempts=max_attempts).run
    now_ms, end, waiting = 0, 0, []
    for name, *arguments in steps:
        if name == "fetch":
            for gap in arguments[0]:
                end += gap
                waiting.append(end - 1)
            run.fetched([offset for offset in waiting if offset >= end - sum(arguments[0])], end)
        elif name == "pass":
            now_ms += arguments[0]
            run.begin_turn(now_ms)
        else:
            verdict, done, ok = arguments
            step = run.next(now_ms)
            if not isinstance(step, Process):
                assert not (waiting and isinstance(step, Fetch))
                continue
            assert list(step.offsets) == waiting[: len(step.offsets)]
            done = min(done, len(step.offsets))
            away = run.finished(verdict, now_ms, done=done)
            gone = len(step.offsets) if verdict is SUCCESS else done
            if away is not None:
                assert list(away.offsets) == waiting[gone : len(step.offsets)]
                assert on_failure is not OnFailure.IN_PLACE or verdict is Verdict.DEAD
                run.moved(ok, now_ms)
                gone = len(step.offsets) if ok else gone
            del waiting[:gone]
        assert run.position == (waiting[0] if waiting else end)


def by_hand(*offsets: int, **changed: Any) -> Client:
    """A client whose listener commits by hand."""
    return Client(*offsets, autocommit=False, **changed)


def ends(client: Client, verdict: Verdict, now_ms: int = 0) -> tuple[int, ...]:
    """Let the next batch end with a verdict."""
    step = client.run.next(now_ms)
    assert isinstance(step, Process)
    client.run.finished(verdict, now_ms)
    return step.offsets


def test_cons_08_success_goes_on_and_a_commit_commits_all_heard_so_far() -> None:
    client = by_hand(0, 1, 2)
    assert [ends(client, SUCCESS), ends(client, SUCCESS)] == [(0,), (1,)]
    assert (client.run.position, client.run.reached) == (0, 2)
    assert ends(client, Verdict.COMMIT) == (2,)
    assert (client.run.position, client.run.reached) == (3, 3)
    client.run.fetched([], 7)
    assert client.run.position == 7, "what was filtered out is consumed, if nothing waits for a commit"


def test_cons_08_a_rollback_hears_again_from_the_last_commit() -> None:
    client = by_hand(0, 1, 2, 3)
    ends(client, Verdict.COMMIT)
    ends(client, SUCCESS)
    assert ends(client, Verdict.ROLLBACK) == (2,)
    assert client.run.position == 1
    assert client.run.next(999) == Wait(1_000), "as after a suspension"
    assert client.run.next(1_000) == Fetch(1)
    client.run.fetched([1, 2, 3], 4)
    assert client.run.next(1_000) == Process((1,), 1)


def test_cons_08_a_rollback_of_the_first_message_hears_it_again() -> None:
    client = by_hand(0, 1)
    assert ends(client, Verdict.ROLLBACK) == (0,)
    assert client.run.next(1_000) == Process((0,), 1)


def test_cons_08_a_suspension_brings_only_its_own_messages_again() -> None:
    client = by_hand(0, 1)
    ends(client, SUCCESS)
    ends(client, SUSPEND)
    assert client.run.next(1_000) == Process((1,), 2)
    assert client.run.position == 0


def test_cons_08_a_rollback_does_not_bring_dead_letters_again() -> None:
    client = by_hand(0, 1, 2, max_attempts=1)
    ends(client, SUCCESS)
    assert client.fails(0) == MoveAway((1,), 1, dead=True)
    client.run.moved(True, 0)
    assert client.run.position == 0, "the dead letter waits for the commit, too"
    ends(client, Verdict.ROLLBACK)
    assert client.run.next(1_000) == Fetch(0)
    client.run.fetched([0, 1, 2], 3)
    assert [ends(client, SUCCESS, 1_000), ends(client, SUCCESS, 1_000)] == [(0,), (2,)]


def test_cons_08_a_handover_commits_only_what_the_listener_has_committed() -> None:
    client = by_hand(0, 1, 2)
    ends(client, Verdict.COMMIT)
    ends(client, SUCCESS)
    client.right.allocated = False
    assert client.run.next(0) == Stop(RunState.HANDED_OVER)
    assert (client.run.position, client.run.may_commit(0)) == (1, True)


def test_cons_08_deaths_count_for_nothing_because_the_position_does_not_tell_which_message_it_was() -> None:
    client = by_hand(0, attempts=9, max_attempts=3)
    assert (client.run.failures, client.run.is_careful) == (0, False)
    assert client.run.next(0) == Process((0,), 1)


hand_steps = st.lists(
    st.tuples(st.sampled_from([SUCCESS, SUSPEND, Verdict.COMMIT, Verdict.ROLLBACK, Verdict.DEAD]), st.integers(1, 3)),
    max_size=60,
)


@given(steps=hand_steps, batch=st.integers(1, 3))
def test_cons_08_what_lies_below_the_position_was_committed_or_is_a_dead_letter(
    steps: list[tuple[Verdict, int]], batch: int
) -> None:
    client = by_hand(batch_messages=batch, max_attempts=2)
    now_ms = 0
    heard: set[int] = set()
    settled: set[int] = set()
    for verdict, count in steps:
        now_ms += 30_000
        client.run.begin_turn(now_ms)
        step = client.run.next(now_ms)
        if isinstance(step, Fetch):
            client.run.fetched(range(step.offset, step.offset + count), step.offset + count)
        elif isinstance(step, Process):
            assert not (settled | heard) & set(step.offsets), "what was not rolled back does not come again"
            away = client.run.finished(verdict, now_ms)
            if away is not None:
                client.run.moved(True, now_ms)
                settled.update(away.offsets)
            elif verdict.is_success:
                heard.update(step.offsets)
            if verdict is Verdict.COMMIT:
                settled |= heard
            if verdict in (Verdict.COMMIT, Verdict.ROLLBACK):
                heard = set()
        assert settled >= set(range(client.run.position))
        assert settled | heard >= set(range(client.run.reached))
