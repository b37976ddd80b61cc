"""The provider's keys as a process keeps them: how often they are read, how long they are used (SPEC SEC-16)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any

from deltamq.api.auth.credentials import KeyTimes
from deltamq.api.issuer import IssuerKeys, JwksInvalid
from deltamq.mq.limits import KEY_WAITERS_MAX
from tests.identity_provider import jwk_of, rsa_key

TIMES = KeyTimes(fresh_ms=1_000, stale_ms=10_000, retry_ms=100, read_ms=1_000, wait_ms=2_000)


class World:
    """A provider that answers at once, unless it hangs, and a clock that can be set forward."""

    def __init__(self, times: KeyTimes = TIMES) -> None:
        self.kids: list[str] | None = ["one"]
        self.key = rsa_key("one")
        self.hangs: asyncio.Event | None = None
        self.raises: Exception | None = None
        self.reads: list[int] = []
        self.ahead_ms = 0
        self.changes = 0
        self.keys = IssuerKeys(self.read, ["RS256"], now_ms=self.now_ms, times=times)
        self.keys.changed = self.count

    def now_ms(self) -> int:
        return int(time.monotonic() * 1_000) + self.ahead_ms

    def count(self) -> None:
        self.changes += 1

    async def read(self) -> bytes:
        assert self.keys._began_ms is not None
        # When it began as the keys know it: a loaded machine comes here later, and the next time sooner.
        self.reads.append(self.keys._began_ms)
        kids = self.kids
        if self.hangs is not None:
            await self.hangs.wait()
        if self.raises is not None:
            raise self.raises
        if kids is None:
            raise JwksInvalid("it hangs")
        return json.dumps({"keys": [jwk_of(self.key, kid) for kid in kids]}).encode()

    async def settled(self) -> None:
        """Wait for the read under way."""
        while self.keys._reading is not None and not self.keys._reading.done():
            await asyncio.sleep(0.001)


def run(played: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(played, 60))


def test_sec_16_keys_are_read_once_for_all_who_wait() -> None:
    async def play() -> None:
        world = World()
        await asyncio.gather(*(world.keys.read() for _ in range(50)))
        assert len(world.reads) <= 2 and world.keys.get("one") is not None and world.keys.get("two") is None
        assert world.changes == 1, "the same keys again are no change"

    run(play())


def test_sec_16_who_asks_in_the_moment_in_which_a_read_ends_waits_for_the_next_and_stops_nobody() -> None:
    """Between the last step of a task and what it calls at its end, others run."""

    async def play() -> None:
        world = World()
        ended = asyncio.get_running_loop().create_future()

        async def next_reader() -> None:
            await ended
            world.ahead_ms += 1
            await world.keys.read()

        waiting = asyncio.ensure_future(next_reader())
        await asyncio.sleep(0)
        world.keys.changed = lambda: ended.set_result(None)  # wakes the next reader in the last step of the read
        await world.keys.read()
        await waiting
        assert len(world.reads) == 2

    run(play())


def test_sec_16_whatever_is_asked_the_provider_is_asked_once_in_a_while() -> None:
    async def play() -> None:
        world = World()
        end = world.now_ms() + 1_000
        while world.now_ms() < end:
            await asyncio.gather(*(world.keys.read() for _ in range(20)))
            world.keys.tend()
        gaps = [after - before for before, after in zip(world.reads, world.reads[1:], strict=False)]
        # The clock has whole milliseconds: of 100, two of its readings may show 99.
        assert min(gaps) >= TIMES.retry_ms - 1 and len(world.reads) <= 11
        await world.keys.stop()

    run(play())


def test_sec_16_a_read_that_was_under_way_does_not_count_for_a_later_token() -> None:
    async def play() -> None:
        world = World()
        world.hangs = asyncio.Event()
        first = asyncio.ensure_future(world.keys.read())
        while not world.reads:
            await asyncio.sleep(0.001)
        world.ahead_ms += 1
        second = asyncio.ensure_future(world.keys.read())
        await asyncio.sleep(0)
        world.kids = ["one", "two"]
        world.hangs.set()
        await asyncio.gather(first, second)
        assert world.keys.get("two") is not None and len(world.reads) == 2

    run(play())


def test_sec_16_old_keys_are_read_again_used_while_that_fails_and_forgotten_in_the_end() -> None:
    async def play() -> None:
        world = World()
        await world.keys.read()
        thumbprint = world.keys.get("one").thumbprint  # type: ignore[union-attr] # it is there
        world.keys.tend()
        await world.settled()
        assert len(world.reads) == 1, "they are young"
        world.kids = None
        for number in range(2, 5):
            world.ahead_ms += TIMES.fresh_ms
            world.keys.tend()
            await world.settled()
            assert len(world.reads) == number and world.keys.has(thumbprint) and world.changes == 1
        world.ahead_ms += TIMES.stale_ms
        world.keys.tend()
        assert world.keys.get("one") is None and not world.keys.has(thumbprint) and world.changes == 2
        world.kids = ["one"]
        await world.settled()
        world.ahead_ms += TIMES.retry_ms
        await world.keys.read()
        assert world.keys.has(thumbprint) and world.changes == 3

    run(play())


def test_sec_16_another_key_of_the_same_id_is_another_key() -> None:
    async def play() -> None:
        world = World()
        await world.keys.read()
        before = world.keys.get("one")
        world.key = rsa_key("two")
        await world.keys.read()
        after = world.keys.get("one")
        assert before is not None and after is not None and before.thumbprint != after.thumbprint
        assert not world.keys.has(before.thumbprint) and world.changes == 2

    run(play())


def test_sec_16_a_provider_that_hangs_holds_nobody_for_long() -> None:
    async def play() -> None:
        world = World(KeyTimes(wait_ms=300))
        world.hangs = asyncio.Event()
        began = time.monotonic()
        await asyncio.gather(*(world.keys.read() for _ in range(10)))
        assert 0.25 < time.monotonic() - began < 20 and len(world.reads) == 1
        await world.keys.stop()

    run(play())


def test_sec_16_a_provider_that_hangs_holds_not_everybody() -> None:
    async def play() -> None:
        world = World(KeyTimes(wait_ms=60_000))
        world.hangs = asyncio.Event()
        waiting = [asyncio.ensure_future(world.keys.read()) for _ in range(KEY_WAITERS_MAX)]
        await asyncio.sleep(0)
        await world.keys.read()
        assert not any(one.done() for one in waiting), "one too many is not waited for"
        world.hangs.set()
        await asyncio.gather(*waiting)
        assert len(world.reads) == 1

    run(play())


def test_sec_16_whatever_reading_raises_the_keys_stay() -> None:
    async def play() -> None:
        world = World()
        await world.keys.read()

        world.raises = RuntimeError("odd")
        await world.keys.read()
        assert world.keys.get("one") is not None and world.changes == 1

    run(play())
