"""Changes of the metadata log that share an append."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from deltamq.api.order.online_clients import JoinedChanges
from deltamq.mq.errors import Conflict, Unknown
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.online import ClientPut, OnlineClient


class SlowLog:
    """A metadata log in memory that stores when it is told to."""

    def __init__(self) -> None:
        self.meta = Meta()
        self.appends: list[list[AnyEvent]] = []
        self.may_store = asyncio.Event()
        self.asked = 0
        self.failure: Exception | None = None

    async def submit(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> Meta:
        self.asked += 1
        await self.may_store.wait()
        decide(Meta())  # a lost race: what was decided then means nothing
        events = list(decide(self.meta))
        if self.failure is not None:
            raise self.failure
        self.meta = self.meta.apply_all(events)
        self.appends.append(events)
        return self.meta


def join(name: str) -> Callable[[Meta], Sequence[AnyEvent]]:
    """A client comes, whichever came before."""

    def decide(meta: Meta) -> Sequence[AnyEvent]:
        joined = meta.online.epoch + 1
        client = OnlineClient(id=name, joined=joined, topics={}, leaving=False, since_ms=0)
        return (ClientPut(group="billing", client=client),)

    return decide


def refuse(_: Meta) -> Sequence[AnyEvent]:
    raise Conflict("no", code="refused")


def with_log(scenario: Callable[[SlowLog, JoinedChanges], Any]) -> SlowLog:
    async def run() -> SlowLog:
        log = SlowLog()
        await scenario(log, JoinedChanges(log.submit))
        return log

    return asyncio.run(asyncio.wait_for(run(), 10))


def test_what_waits_for_an_append_shares_the_next_one() -> None:
    async def scenario(log: SlowLog, changes: JoinedChanges) -> None:
        tasks = [asyncio.create_task(changes.store(join("c0")))]
        while not log.asked:
            await asyncio.sleep(0)
        tasks += [asyncio.create_task(changes.store(join(f"c{at}"))) for at in range(1, 9)]
        await asyncio.sleep(0)
        log.may_store.set()
        await asyncio.gather(*tasks)

    log = with_log(scenario)
    assert [len(events) for events in log.appends] == [1, 8]
    clients = log.meta.online.group("billing").clients
    assert [clients[f"c{at}"].joined for at in range(9)] == list(range(1, 10)), "each was decided after those before"


def test_one_that_is_refused_holds_up_no_other() -> None:
    async def scenario(log: SlowLog, changes: JoinedChanges) -> None:
        log.may_store.set()
        results = await asyncio.gather(
            *(changes.store(one) for one in (join("c0"), refuse, join("c1"))), return_exceptions=True
        )
        assert [type(one) for one in results] == [type(None), Conflict, type(None)]

    assert with_log(scenario).meta.online.group("billing").clients.keys() == {"c0", "c1"}


def test_all_learn_that_nobody_knows_whether_it_was_stored_and_the_next_is_tried() -> None:
    async def scenario(log: SlowLog, changes: JoinedChanges) -> None:
        log.may_store.set()
        log.failure = Unknown()
        results = await asyncio.gather(changes.store(join("c0")), changes.store(join("c1")), return_exceptions=True)
        assert [type(one) for one in results] == [Unknown, Unknown]
        log.failure = None
        await changes.store(join("c2"))

    assert with_log(scenario).meta.online.group("billing").clients.keys() == {"c2"}


def test_who_does_not_wait_any_more_is_stored_all_the_same() -> None:
    async def scenario(log: SlowLog, changes: JoinedChanges) -> None:
        gone = asyncio.create_task(changes.store(join("c0")))
        while not log.asked:
            await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        log.may_store.set()
        await changes.store(join("c1"))

    assert with_log(scenario).meta.online.group("billing").clients.keys() == {"c0", "c1"}


def test_at_a_stop_nobody_knows_what_was_stored() -> None:
    async def scenario(log: SlowLog, changes: JoinedChanges) -> None:
        waiting = asyncio.create_task(changes.store(join("c0")))
        while not log.asked:
            await asyncio.sleep(0)
        await changes.stop()
        with pytest.raises(Unknown):
            await waiting
        await changes.stop()

    assert with_log(scenario).appends == []
