"""Acts as they are carried out: what is stored when, and what fails with it (SPEC SEC-40)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import pytest

from deltamq.api.audit.acts import Acts, Asking, noting
from deltamq.mq.audit import ActBegun, ActEnded, AuditRecord
from deltamq.mq.auth.changes import decide_put_principal
from deltamq.mq.errors import Conflict, DeltaMQError, StorageFull, Unavailable, Unknown
from deltamq.mq.limits import ENDS_WAITING_MAX
from deltamq.mq.meta.fold import Meta

ASKING = Asking("ada", "10.0.0.1:9", "PUT /v1/auth/principals/{principal}", "principal", "reports", {"note": "x"})


class Stored:
    """What is stored; the next calls fail as they are told."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []
        self.failures: list[Exception | None] = []

    async def __call__(self, records: Sequence[AuditRecord]) -> None:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self.records += records


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def acts(stored: Stored) -> Acts:
    ids = count(1)
    return Acts(stored, process=lambda: "p1", now_ms=lambda: 5, new_id=lambda: f"id-{next(ids)}")


def change(note: str) -> str | None:
    """Change the metadata as `HostedMeta` does; return the id of the act that is noted."""
    with noting(lambda meta: decide_put_principal(meta.auth, "reports", note, 5)) as (decide, act):
        decide(Meta())
    return act


def played(acts: Acts, work: Callable[[], Awaitable[None]]) -> None:
    async def play() -> None:
        async with acts.carried_out(ASKING):
            await work()

    asyncio.run(play())


async def nothing() -> None:
    return


def ended(stored: Stored) -> ActEnded:
    (found,) = [one for one in stored.records if isinstance(one, ActEnded)]
    return found


def test_sec_40_the_begin_is_stored_before_the_act_and_the_end_behind_it(acts: Acts, stored: Stored) -> None:
    async def work() -> None:
        (begun,) = stored.records
        assert isinstance(begun, ActBegun)
        assert (begun.principal, begun.name, json.loads(begun.asked)) == ("ada", "reports", {"note": "x"})
        assert change("x") == begun.id

    played(acts, work)
    end = ended(stored)
    assert (end.outcome, end.events) == ("done", ("principal_put",))
    assert json.loads(end.after)["auth/reports"]["note"] == "x"


@pytest.mark.parametrize("failure", [StorageFull(), Unavailable(), OSError(30, "read-only"), TimeoutError()])
def test_sec_40_an_act_that_cannot_be_recorded_is_not_begun(acts: Acts, stored: Stored, failure: Exception) -> None:
    async def work() -> None:
        pytest.fail("it is carried out")

    stored.failures = [failure]
    with pytest.raises(Unavailable) as found:
        played(acts, work)
    assert found.value.code == "audit_unavailable"
    assert not stored.records


def test_sec_40_a_begin_that_may_be_stored_ends_as_failed(acts: Acts, stored: Stored) -> None:
    stored.failures = [Unknown()]
    with pytest.raises(Unavailable):
        played(acts, nothing)
    asyncio.run(acts.store_waiting())
    assert (ended(stored).outcome, ended(stored).code) == ("failed", "audit_unavailable")


def test_sec_40_an_end_that_cannot_be_recorded_is_not_confirmed_and_recorded_later(acts: Acts, stored: Stored) -> None:
    stored.failures = [None, StorageFull()]
    with pytest.raises(Unknown) as found:
        played(acts, nothing)
    assert found.value.code == "audit_incomplete"
    stored.failures = [StorageFull()]
    asyncio.run(acts.store_waiting())
    assert len(stored.records) == 1
    asyncio.run(acts.store_waiting())
    assert ended(stored).outcome == "done"


def test_sec_40_while_too_many_ends_wait_nothing_more_is_begun(acts: Acts, stored: Stored) -> None:
    stored.failures = [one for _ in range(ENDS_WAITING_MAX) for one in (None, StorageFull())]
    for _ in range(ENDS_WAITING_MAX):
        with pytest.raises(Unknown):
            played(acts, nothing)
    with pytest.raises(Unavailable, match="wait for their end"):
        played(acts, nothing)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Conflict(code="too_many_keys"), "refused"),
        (Unavailable(), "failed"),
        (Unknown(), "unknown"),
        (KeyError(), "failed"),
    ],
)
def test_sec_40_an_error_is_the_outcome(acts: Acts, stored: Stored, error: Exception, outcome: str) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(type(error)):
        played(acts, work)
    assert ended(stored).outcome == outcome
    assert ended(stored).code == (error.code if isinstance(error, DeltaMQError) else "internal")


def test_sec_40_an_error_behind_a_change_is_an_unknown_outcome(acts: Acts, stored: Stored) -> None:
    async def work() -> None:
        change("x")
        raise Unavailable

    with pytest.raises(Unavailable):
        played(acts, work)
    assert ended(stored).outcome == "unknown"


def test_sec_40_an_act_that_is_cancelled_while_its_change_is_stored_is_an_unknown_outcome(
    acts: Acts, stored: Stored
) -> None:
    """The thread that stores it goes on: the change is there in the end, with the id of the act."""

    async def play() -> None:
        storing, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        done: list[str | None] = []

        async def submit() -> None:
            with noting(lambda meta: decide_put_principal(meta.auth, "reports", "x", 5)) as (decide, act):

                def store() -> None:
                    loop.call_soon_threadsafe(storing.set)
                    go_on.wait(20)
                    decide(Meta())
                    done.append(act)

                await asyncio.to_thread(store)

        async def call() -> None:
            async with acts.carried_out(ASKING):
                await submit()

        task = asyncio.create_task(call())
        await storing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await loop.shutdown_default_executor()
        assert done == [ended(stored).id]

    asyncio.run(play())
    assert (ended(stored).outcome, ended(stored).status) == ("unknown", 500)


def test_sec_40_what_an_act_left_behind_is_no_part_of_it(acts: Acts, stored: Stored) -> None:
    async def play() -> None:
        go = asyncio.Event()

        async def later() -> None:
            await go.wait()
            assert change("late") is None

        async with acts.carried_out(ASKING):
            task = asyncio.create_task(later())
            change("x")
        go.set()
        await task

    asyncio.run(play())
    assert ended(stored).events == ("principal_put",)
    assert change("by nobody") is None
