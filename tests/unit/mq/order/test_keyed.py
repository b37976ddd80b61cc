"""A client's run of one partition whose keys are heard in parallel (SPEC ORDER-11)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamq.mq.order.authorization import Authorization
from deltamq.mq.order.keyed import Busy, KeyedRun
from deltamq.mq.order.orderly import (
    Fetch,
    MoveAway,
    OnFailure,
    OrderlySettings,
    Process,
    Right,
    RunState,
    Stop,
    Verdict,
)
from deltamq.mq.order.pull_lock import ClientLock

FOREVER = 10**9
SUCCESS, SUSPEND = Verdict.SUCCESS, Verdict.SUSPEND


class Client:
    """A run of messages 0, 1, ... with these keys (`-`: none), and the parts of its right."""

    def __init__(self, keys: str, *, attempts: int = 0, **changed: Any) -> None:
        authorization = Authorization()
        authorization.granted(0, FOREVER, 0)
        self.lock = ClientLock(1, FOREVER)
        self.right = Right(authorization, self.lock)
        asked = OrderlySettings(**{"keys_in_parallel": 4, **changed})
        self.run = KeyedRun(self.right, 0, asked, attempts=attempts)
        self.run.fetched([(at, None if key == "-" else key) for at, key in enumerate(keys)], len(keys))

    def begin(self, now_ms: int = 0) -> Process | MoveAway | None:
        return self.run.begin(now_ms, committed=True)

    def begin_all(self, now_ms: int = 0) -> list[int]:
        """Begin whatever may begin; returns the first offsets."""
        found = []
        while isinstance(step := self.begin(now_ms), Process):
            found.append(step.offsets[0])
        return found


def test_order_11_keys_are_heard_in_parallel_and_messages_of_one_key_in_turn() -> None:
    client = Client("abacb")
    assert client.begin_all() == [0, 1, 3]
    client.run.finished(1, SUCCESS, 0)
    client.run.finished(3, SUCCESS, 0)
    assert (client.run.position, client.run.done_ahead) == (0, 2), "the lowest that is not done"
    assert client.begin_all() == [4], "2 waits for 0"
    client.run.finished(0, SUCCESS, 0)
    assert (client.run.position, client.run.done_ahead) == (2, 1)
    assert client.begin_all() == [2]
    client.run.finished(2, SUCCESS, 0)
    client.run.finished(4, SUCCESS, 0)
    assert (client.run.position, client.run.look(0)) == (5, Fetch(5))


def test_order_11_messages_without_a_key_wait_for_nothing_and_the_number_at_once_is_bounded() -> None:
    client = Client("------")
    assert client.run.startable(0) == 4
    assert client.begin_all() == [0, 1, 2, 3]
    assert client.run.startable(0) == 0
    client.run.finished(2, SUCCESS, 0)
    assert client.begin_all() == [4]


def test_order_11_a_batch_is_of_one_key_or_of_none() -> None:
    client = Client("aab-a--", batch_messages=3)
    batches = [step.offsets for step in iter(client.begin, None) if isinstance(step, Process)]
    assert batches == [(0, 1, 4), (2,), (3, 5), (6,)]


def test_order_11_a_failing_key_stops_only_itself() -> None:
    client = Client("aba", suspend_ms=100)
    assert client.begin_all() == [0, 1]
    assert client.run.finished(0, SUSPEND, 0) is None
    client.run.finished(1, SUCCESS, 0)
    assert (client.run.position, client.run.failures, client.run.resume_ms()) == (0, 1, 100)
    assert client.begin(99) is None
    assert client.begin(100) == Process((0,), 2)


@pytest.mark.parametrize("strict", [False, True])
def test_order_11_a_failing_key_holds_up_others_when_they_are_too_far_ahead(strict: bool) -> None:
    on_failure = OnFailure.of(strict=strict)
    client = Client("abbbbb", ahead_messages=3, on_failure=on_failure, max_attempts=5)
    assert client.begin_all() == [0, 1]
    client.run.finished(0, SUSPEND, 0, asked_ms=10_000)
    client.run.finished(1, SUCCESS, 0)
    assert client.begin_all() == [2]
    client.run.finished(2, SUCCESS, 0)
    assert client.begin_all() == [], "3 would be the fourth"
    assert client.run.startable(0) == 0
    assert client.run.look(0) == Busy(), "nor is more fetched"
    for attempt in range(2, 6):
        assert client.begin_all(10_000 * attempt) == [0]
        away = client.run.finished(0, SUSPEND, 10_000 * attempt, asked_ms=10_000)
        assert away == (MoveAway((0,), 5, dead=True) if attempt == 5 and not strict else None)
    if strict:
        assert client.begin_all(10_000 * 6) == [0], "for ever (ORDER-8)"
        return
    client.run.moved(0, True, 50_000)
    assert client.run.position == 3
    assert client.begin_all(50_000) == [3]


def test_order_11_a_dead_letter_that_cannot_be_stored_is_tried_again_in_place() -> None:
    client = Client("ab", max_attempts=1, suspend_ms=100)
    assert client.begin_all() == [0, 1]
    assert client.run.finished(0, SUSPEND, 0) == MoveAway((0,), 1, dead=True)
    assert client.run.position == 0
    client.run.moved(0, False, 0)
    assert client.begin(100) == Process((0,), 2)
    assert client.run.finished(0, Verdict.DEAD, 0) == MoveAway((0,), 2, dead=True)


def test_order_11_best_tried_order_sends_a_failure_away_and_its_key_goes_on() -> None:
    client = Client("aa", on_failure=OnFailure.RETRY_TOPIC)
    assert client.begin_all() == [0]
    assert client.run.finished(0, SUSPEND, 0) == MoveAway((0,), 1, dead=False)
    assert client.begin() is None, "not before the failure is stored"
    client.run.moved(0, True, 0)
    assert client.begin_all() == [1]


def test_order_11_a_handover_hears_what_keeps_others_from_a_commit_and_begins_nothing_else() -> None:
    client = Client("aaabb--", keys_in_parallel=3)
    assert client.begin_all() == [0, 3, 5]
    client.run.finished(3, SUCCESS, 0)
    client.right.allocated = False
    assert client.begin_all() == [], "everything below 3 is of a key that is heard"
    client.run.finished(0, SUCCESS, 0)
    assert client.run.look(0) == Busy()
    client.run.finished(5, SUCCESS, 0)
    assert client.begin_all() == [1, 4]
    client.run.finished(1, SUCCESS, 0)
    client.run.finished(4, SUCCESS, 0)
    assert client.begin_all() == [2]
    client.run.finished(2, SUCCESS, 0)
    assert client.run.look(0) == Stop(RunState.HANDED_OVER)
    assert (client.run.position, client.run.done_ahead, client.run.may_commit(0)) == (6, 0, True)
    assert client.begin() is None


def test_order_11_a_handover_does_not_wait_for_a_key_that_fails() -> None:
    client = Client("aabc")
    assert client.begin_all() == [0, 2, 3]
    client.run.finished(0, SUCCESS, 0)
    client.run.finished(3, SUCCESS, 0)
    assert client.begin_all() == [1]
    client.right.allocated = False
    client.run.finished(1, SUSPEND, 0)
    client.run.finished(2, SUCCESS, 0)
    assert client.run.look(FOREVER - 40_000) == Stop(RunState.HANDED_OVER)
    assert (client.run.position, client.run.failures, client.run.done_ahead) == (1, 1, 2)


def test_order_11_a_result_without_the_lock_is_discarded() -> None:
    client = Client("ab", max_attempts=1)
    assert client.begin_all() == [0, 1]
    assert client.run.finished(1, SUSPEND, 0) == MoveAway((1,), 1, dead=True)
    client.lock.lose()
    assert client.run.finished(0, SUCCESS, 0) is None
    assert client.run.look(0) == Busy(), "a thread still has a message"
    client.run.moved(1, True, 0)
    assert client.run.look(0) == Stop(RunState.LOST)
    assert (client.run.position, client.run.may_commit(0), client.begin()) == (0, False, None)


def test_order_11_after_deaths_messages_are_heard_one_by_one_each_after_a_commit() -> None:
    client = Client("ab" * 200, attempts=2, ahead_messages=300, max_attempts=9)
    for offset in range(300):
        assert client.run.is_careful
        assert client.run.begin(0, committed=False) is None
        assert client.run.startable(0) == 1
        assert client.begin() == Process((offset,), 3 if offset == 0 else 1)
        assert client.begin() is None
        client.run.finished(offset, SUCCESS, 0)
    assert not client.run.is_careful
    assert client.begin_all() == [300, 301]


def test_order_11_after_deaths_nothing_overtakes_a_message_that_fails() -> None:
    client = Client("ab", attempts=2, max_attempts=9, suspend_ms=100)
    assert client.begin() == Process((0,), 3)
    client.run.finished(0, SUSPEND, 0)
    assert (client.begin(99), client.run.failures) == (None, 3)
    assert client.begin(100) == Process((0,), 4)


def test_order_11_what_has_ended_three_clients_is_not_heard_again() -> None:
    client = Client("ab", attempts=3, max_attempts=3)
    assert client.run.failures == 3
    assert client.begin() == MoveAway((0,), 3, dead=True)
    client.run.moved(0, True, 0)
    assert (client.run.position, client.run.failures) == (1, 0)
    assert client.begin() == Process((1,), 1)


def test_order_11_attempts_of_others_count_for_the_message_at_the_committed_offset_alone() -> None:
    client = Client("", attempts=5)
    assert client.run.failures == 5
    client.run.fetched([], 0)
    assert client.run.failures == 5, "the message may be fetched later"
    client.run.fetched([(2, "a")], 3)
    assert (client.run.position, client.run.failures) == (2, 0), "what was at offset 0 is filtered out"


actions = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abc-")), max_size=5)),
        st.tuples(st.just("begin")),
        st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from([SUCCESS, SUCCESS, SUSPEND, Verdict.DEAD])),
        st.tuples(st.just("moved"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("pass"), st.integers(0, 2_000)),
        st.tuples(st.just("allocate"), st.booleans()),
    ),
    max_size=80,
)


class Model:
    """What a run has to keep, checked at each step: a listener for each batch, and the messages by key."""

    def __init__(self, **changed: Any) -> None:
        self.client = Client("", **changed)
        self.run = self.client.run
        self.settings = OrderlySettings(**changed)
        self.now_ms = self.end = 0
        self.keys: dict[int, str] = {}
        self.done: set[int] = set()
        self.heard: dict[int, tuple[int, ...]] = {}
        self.moving: dict[int, tuple[int, ...]] = {}
        self.failed: set[int] = set()

    @property
    def lowest(self) -> int:
        return min((offset for offset in self.keys if offset not in self.done), default=self.end)

    def fetch(self, found: list[tuple[int, str]]) -> None:
        new = []
        for gap, key in found:
            self.end += gap
            self.keys[self.end - 1] = key
            new.append((self.end - 1, None if key == "-" else key))
        self.run.fetched(new, self.end)

    def begin(self) -> None:
        possible = self.run.startable(self.now_ms)
        step = self.run.begin(self.now_ms, committed=True)
        assert (step is None) == (possible == 0)
        if step is None:
            return
        assert isinstance(step, Process)
        busy = {self.keys[offset] for batch in (*self.heard.values(), *self.moving.values()) for offset in batch}
        keys = {self.keys[offset] for offset in step.offsets}
        assert len(keys) == 1 and not (keys - {"-"}) & busy, "one batch of a key at a time"
        if keys != {"-"}:
            (key,) = keys
            waiting = [at for at, other in sorted(self.keys.items()) if other == key and at not in self.done]
            assert list(step.offsets) == waiting[: len(step.offsets)], "in order, and nothing is skipped"
        between = [at for at in self.keys if self.lowest <= at < step.offsets[-1]]
        assert len(between) < self.settings.ahead_messages, "the window"
        assert not set(step.offsets) & self.done, "once"
        self.heard[step.offsets[0]] = step.offsets
        assert len(self.heard) + len(self.moving) <= self.settings.keys_in_parallel

    def finish(self, which: int, verdict: Verdict) -> None:
        if not self.heard:
            return
        first = sorted(self.heard)[which % len(self.heard)]
        batch = self.heard.pop(first)
        away = self.run.finished(first, verdict, self.now_ms)
        if away is not None:
            assert away.offsets == batch
            self.moving[first] = batch
        elif verdict is SUCCESS:
            self.done.update(batch)

    def moved(self, which: int, ok: bool) -> None:
        if not self.moving:
            return
        first = sorted(self.moving)[which % len(self.moving)]
        batch = self.moving.pop(first)
        self.run.moved(first, ok, self.now_ms)
        if ok:
            self.done.update(batch)

    def check(self) -> None:
        assert self.run.position == self.lowest, "never beyond a message that is not done"
        assert self.run.done_ahead == sum(offset > self.lowest for offset in self.done)
        assert self.run.done_ahead < self.settings.ahead_messages

    def end_all(self) -> None:
        """Let everything succeed; then everything was heard, and nothing is left over."""
        self.client.right.allocated = True
        for _ in range(3 * len(self.keys) + 3):
            self.now_ms += 30_000
            while self.moving:
                self.moved(0, True)
            self.begin()
            self.finish(0, SUCCESS)
        assert self.done == set(self.keys) and self.run.position == self.end


@settings(max_examples=settings.default.max_examples * 2)
@given(
    steps=actions,
    batch=st.integers(1, 3),
    parallel=st.integers(2, 4),
    ahead=st.integers(3, 8),
    on_failure=st.sampled_from(OnFailure),
    max_attempts=st.integers(1, 3),
)
def test_order_11_in_any_schedule_keys_keep_their_order_and_nothing_is_lost_or_committed_too_early(
    steps: list[tuple[Any, ...]], batch: int, parallel: int, ahead: int, on_failure: OnFailure, max_attempts: int
) -> None:
    model = Model(
        batch_messages=batch,
        keys_in_parallel=parallel,
        ahead_messages=ahead,
        on_failure=on_failure,
        max_attempts=max_attempts,
    )
    for name, *arguments in steps:
        if name == "fetch":
            model.fetch(*arguments)
        elif name == "begin":
            model.begin()
        elif name == "end":
            model.finish(*arguments)
        elif name == "moved":
            model.moved(*arguments)
        elif name == "pass":
            model.now_ms += arguments[0]
        else:
            model.client.right.allocated = arguments[0]
        model.check()
    model.end_all()
    model.check()


@given(
    keys=st.text("abc-", min_size=1, max_size=30), order=st.lists(st.integers(0, 9), max_size=40), fails=st.booleans()
)
def test_order_11_a_handover_ends_and_repeats_nothing_unless_a_key_fails(
    keys: str, order: list[int], fails: bool
) -> None:
    model = Model(keys_in_parallel=3, ahead_messages=20)
    model.fetch([(1, key) for key in keys])
    for at in order:
        model.begin()
        if at % 2:
            model.finish(at, SUCCESS)
    model.client.right.allocated = False
    if fails:
        model.finish(0, SUSPEND)
    for _ in range(3 * len(keys)):
        if isinstance(model.run.look(model.now_ms), Stop):
            break
        model.begin()
        model.finish(0, SUCCESS)
        model.check()
    assert model.run.look(model.now_ms) == Stop(RunState.HANDED_OVER)
    assert not model.heard
    if not fails:
        assert model.run.done_ahead == 0


@given(
    keys=st.text("abc-", min_size=1, max_size=40),
    killer=st.integers(0, 39),
    commits=st.lists(st.booleans(), min_size=1, max_size=7),
    max_attempts=st.integers(3, 4),
)
def test_order_11_a_message_that_kills_clients_is_set_aside_and_no_other(
    keys: str, killer: int, commits: list[bool], max_attempts: int
) -> None:
    """Each life commits now and then; a death counts as a failure of the message at the committed offset."""
    killer %= len(keys)
    committed = attempts = lives = step_count = 0
    aside: list[int] = []
    while committed < len(keys):
        lives += 1
        assert lives <= 3 * max_attempts, "it kills for ever"
        client = Client("", max_attempts=max_attempts, attempts=attempts)
        run = client.run = KeyedRun(
            client.right, committed, OrderlySettings(keys_in_parallel=3, max_attempts=max_attempts), attempts=attempts
        )
        later = [(at, None if key == "-" else key) for at, key in enumerate(keys) if at >= committed]
        run.fetched(later, len(keys))
        while committed < len(keys):
            step_count += 1
            if run.is_careful or commits[step_count % len(commits)] or run.position == len(keys):
                committed, attempts = run.position, run.failures
            step = client.begin()
            if step is None:
                continue
            if isinstance(step, MoveAway):
                aside.extend(step.offsets)
                run.moved(step.offsets[0], True, 0)
            elif step.offsets == (killer,):
                attempts += 1
                break
            else:
                run.finished(step.offsets[0], SUCCESS, 0)
    assert aside == [killer]


def test_order_11_waiting_keys_come_in_the_order_of_their_offsets() -> None:
    client = Client("aabbcc", keys_in_parallel=1)
    heard: dict[str, list[int]] = defaultdict(list)
    for offset in range(6):
        assert client.begin() == Process((offset,), 1)
        heard["aabbcc"[offset]].append(offset)
        client.run.finished(offset, SUCCESS, 0)
    assert heard == {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
