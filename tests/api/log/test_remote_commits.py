"""Commits to an object store: the event loop makes all of them, and the next one's data goes up during a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from typing import Any

import pytest

from deltamq.api.log.group_commit import FAR, CommitQueue, Gather
from deltamq.api.log.lane import Lane
from deltamq.api.log.parts import PendingRequest, RequestPart
from deltamq.api.wire.rows import Rows
from deltamq.mq.errors import Unavailable, Unknown
from deltamq.mq.limits import COMMIT_BYTES_MAX
from deltamq.mq.producer import OutOfSequence
from deltamq.mq.producer import Sequence as MessageSequence
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush
from tests.remote_store import RemoteStore
from tests.rows import REF, all_bodies, batch

_AT_ONCE = Gather(0)


class Bench:
    """A queue over a real log on a store that holds puts."""

    def __init__(self, store: RemoteStore, log: PartitionLog, gather: Gather) -> None:
        self.store = store
        self.log = log
        self.loop = asyncio.get_running_loop()
        self.queue = CommitQueue(self, Lane(self.loop, None), self.loop, gather)
        self.groups: list[int] = []

    def open(self) -> PartitionLog:
        return self.log

    def codec(self) -> None:
        return None

    def committed(self, parts: Sequence[RequestPart], took_s: float, published_s: float) -> None:
        self.groups.append(len(parts))

    def put(self, *bodies: str, **part: Any) -> RequestPart:
        rows = Rows(len(bodies), sum(map(len, bodies)), body=list(bodies))
        made = RequestPart(rows, PendingRequest(1, self.loop), **{"flush": Flush.SYNC, **part})
        self.queue.put(made)
        return made

    async def in_commit(self, *bodies: str) -> RequestPart:
        """Put a part, and return it when its data is stored and its commit waits."""
        part = self.put(*bodies)
        (data,), _ = await self.store.holds(data=1)
        self.store.go_on(data)
        await self.store.holds(commits=1)
        return part

    async def go_up(self, *letters: str) -> list[RequestPart]:
        """Put large parts, each in a window of its own, and return them when the data of all waits."""
        parts = []
        for letter in letters:
            parts.append(self.put(letter * 300_000))
            await self.store.holds(data=len(parts), commits=1)
        return parts


Test = Callable[[Bench], Coroutine[Any, Any, None]]


@pytest.fixture
def run() -> Callable[[Test], list[bytes]]:
    """Run a test on a loop of its own; return what another process reads afterwards."""

    def on_a_log(test: Test, gather: Gather = _AT_ONCE) -> list[bytes]:
        store = RemoteStore()

        async def inside() -> None:
            with closing(Warehouse.open("", store=store)) as warehouse:
                bench = Bench(store, warehouse.create(REF), gather)
                store.hold()
                await asyncio.wait_for(test(bench), 30)
                store.release()
                await bench.queue.finish()

        asyncio.run(inside())
        with closing(Warehouse.open("", store=store)) as other:
            return all_bodies(other.create(REF))

    return on_a_log


def _bases(*parts: RequestPart) -> list[int | None]:
    return [part.appended.base_offset if part.appended else None for part in parts]


def test_rely_14_data_goes_up_during_a_commit_which_nothing_overtakes(
    run: Callable[[Test], list[bytes]],
) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        others = [bench.put("b", "c")]
        (data,), (commit,) = await bench.store.holds(data=1, commits=1)
        others.append(bench.put("d"))
        bench.store.go_on(data)
        for _ in range(20):
            await asyncio.sleep(0)
        assert bench.store.held == [commit], (
            "its data is there, and it waits for the commit before; the third waits, too"
        )
        bench.store.go_on(commit)
        await first.pending.wait()
        await bench.store.holds(data=1, commits=1)
        bench.store.release()
        for part in others:
            await part.pending.wait()
        assert _bases(first, *others) == [0, 1, 3] and bench.groups == [1, 1, 1]

    assert run(test) == [b"a", b"b", b"c", b"d"]


def test_rely_14_several_large_windows_go_up_and_are_committed_in_order(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        others = await bench.go_up("b", "c", "d")
        data, (commit,) = await bench.store.holds(data=3, commits=1)
        for key in reversed(data):
            bench.store.go_on(key)
        bench.store.go_on(commit)
        for number, part in enumerate(others, 1):
            _, (commit,) = await bench.store.holds(commits=1)
            bench.store.go_on(commit)
            await part.pending.wait()
            assert _bases(*others) == [*range(1, number + 1), *[None] * (3 - number)]
        assert _bases(first) == [0] and bench.groups == [1, 1, 1, 1]
        assert len([key for key in bench.store.all_keys() if key.endswith(".parquet")]) == 4, "no file went up twice"

    assert [body[:1] for body in run(test)] == [b"a", b"b", b"c", b"d"]


def test_rely_14_windows_behind_one_that_failed_are_numbered_again(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        others = await bench.go_up("b", "c", "d")
        data, (commit,) = await bench.store.holds(data=3, commits=1)
        bench.store.go_on(data[0], Unavailable("no", code="storage_error"))
        bench.store.go_on(commit, Unavailable("no", code="storage_error"))
        bench.store.release()
        for part in (first, *others):
            await part.pending.wait()
        assert isinstance(first.error, Unavailable) and _bases(*others) == [0, 1, 2]

    assert [body[:1] for body in run(test)] == [b"b", b"c", b"d"]


def test_the_data_that_came_late_is_committed_when_it_is_there(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        second = bench.put("b")
        (data,), (commit,) = await bench.store.holds(data=1, commits=1)
        bench.store.go_on(commit)
        await first.pending.wait()
        assert bench.store.held == [data]
        bench.store.go_on(data)
        await bench.store.holds(commits=1)
        bench.store.release()
        await second.pending.wait()
        assert _bases(first, second) == [0, 1]

    assert run(test) == [b"a", b"b"]


def test_rely_14_data_that_went_up_behind_a_lost_commit_is_numbered_again(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        second = bench.put("b")
        (data,), _ = await bench.store.holds(data=1, commits=1)
        with closing(Warehouse.open("", store=bench.store)) as other:
            await asyncio.to_thread(other.create(REF).append, [batch(b"other")])
        bench.store.go_on(data)
        bench.store.release()
        for part in (first, second):
            await part.pending.wait()
        assert _bases(first, second) == [1, 2]

    assert run(test) == [b"other", b"a", b"b"]


@pytest.mark.parametrize("error", [Unavailable("no", code="storage_error"), Unknown("perhaps")])
def test_rely_14_data_that_went_up_behind_a_commit_that_failed_takes_its_place(
    run: Callable[[Test], list[bytes]], error: Exception
) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        second = bench.put("b")
        (data,), (commit,) = await bench.store.holds(data=1, commits=1)
        bench.store.go_on(data)
        bench.store.go_on(commit, error)
        await first.pending.wait()
        assert type(first.error) is type(error)
        bench.store.release()
        await second.pending.wait()
        assert _bases(second) == [0]

    assert run(test) == [b"b"]


def test_data_that_cannot_be_stored_ahead_is_tried_again_in_its_commit(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        second = bench.put("b")
        (data,), (commit,) = await bench.store.holds(data=1, commits=1)
        bench.store.go_on(data, Unavailable("no", code="storage_error"))
        bench.store.go_on(commit)
        (again,), _ = await bench.store.holds(data=1)
        assert again != data
        bench.store.release()
        await second.pending.wait()
        assert _bases(first, second) == [0, 1]

    assert run(test) == [b"a", b"b"]


def test_send_05_a_producer_in_both_windows_is_decided_by_its_own_commit(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        stamp = ProducerStamp("p", 1, None, 1)
        first = bench.put("a", stamp=stamp)
        (data,), _ = await bench.store.holds(data=1)
        bench.store.go_on(data)
        await bench.store.holds(commits=1)
        again, following = bench.put("a", stamp=stamp), bench.put("b", stamp=ProducerStamp("p", 2, None, 1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(bench.store.held) == 1, "what the commit stores decides what is new behind it"
        bench.store.release()
        for part in (first, again, following):
            await part.pending.wait()
        assert _bases(first, again, following) == [0, 0, 1]
        assert again.appended is not None and again.appended.duplicate

    assert run(test) == [b"a", b"b"]


def test_send_13_a_number_that_does_not_follow_is_refused_behind_a_commit(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        gap = MessageSequence(epoch=0, base=5, born_ms=2**50)
        second = bench.put("b", stamp=ProducerStamp("p", -1, None, 1, sequence=gap))
        for _ in range(20):
            await asyncio.sleep(0)
        bench.store.release()
        for part in (first, second):
            await part.pending.wait()
        assert first.error is None and isinstance(second.error, OutOfSequence)

    assert run(test) == [b"a"]


def test_a_roll_up_that_waits_for_its_turn_gets_it_between_two_commits(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        second = bench.put("b")
        (data,), (commit,) = await bench.store.holds(data=1, commits=1)
        fencing = bench.loop.run_in_executor(None, bench.log.fence, "route", 3)
        while not bench.log.turn.is_wanted:
            await asyncio.sleep(0)
        bench.store.go_on(data)
        bench.store.go_on(commit)
        await fencing
        bench.store.release()
        for part in (first, second):
            await part.pending.wait()
        assert bench.log.fences == {"route": 3} and _bases(first, second) == [0, 1]

    assert run(test) == [b"a", b"b"]


@pytest.mark.parametrize("others_come", [True, False])
def test_clients_of_two_windows_are_joined_in_one_if_they_come_together(
    run: Callable[..., list[bytes]], others_come: bool
) -> None:
    async def ended(bench: Bench, part: RequestPart) -> None:
        (*_, commit) = bench.store.held
        bench.store.go_on(commit)
        await part.pending.wait()

    async def test(bench: Bench) -> None:
        first = await bench.in_commit("a")
        second = bench.put("b")
        (data,), _ = await bench.store.holds(data=1, commits=1)
        bench.store.go_on(data)
        for _ in range(20):
            await asyncio.sleep(0)
        await ended(bench, first)
        await bench.store.holds(commits=1)
        again = bench.put("c")
        for _ in range(20):
            await asyncio.sleep(0)
        await bench.store.holds(commits=1)
        assert len(bench.store.held) == 1, "it waits for the client of the commit under way"
        await ended(bench, second)
        parts = [again, *([bench.put("d")] if others_come else [])]
        bench.store.release()
        for part in parts:
            await part.pending.wait()
        assert bench.groups == [1, 1, len(parts)] and (bench.queue._join_from_s > 0) is not others_come

    assert run(test, Gather(0.5, FAR.bytes_max, joins=True)) == [b"a", b"b", b"c", b"d"][: 4 if others_come else 3]


@pytest.mark.parametrize("window_s", [0.05, 60])
def test_send_14_parts_wait_for_each_other_until_the_first_is_due(
    run: Callable[[Test], list[bytes]], window_s: float
) -> None:
    async def test(bench: Bench) -> None:
        bench.store.release()
        parts = [bench.put("a", window_s=window_s)]
        for body in ("b", "c"):
            await asyncio.sleep(0)
            parts.append(bench.put(body, window_s=60))
        assert not any(part.appended for part in parts)
        if window_s == 60:
            parts.append(bench.put("d"))
        for part in parts:
            await part.pending.wait()
        assert bench.groups == [len(parts)]

    assert run(test) == [b"a", b"b", b"c", b"d"][: 3 if window_s < 1 else 4]


def test_send_14_a_window_ends_when_it_holds_as_much_as_a_commit_may(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        bench.store.release()
        large = "x" * (COMMIT_BYTES_MAX // 2)
        parts = [bench.put(large, window_s=60) for _ in range(2)]
        for part in parts:
            await part.pending.wait()
        assert bench.groups == [2]

    assert len(run(test)) == 2


def test_send_14_a_queue_that_finishes_waits_for_no_window(run: Callable[[Test], list[bytes]]) -> None:
    async def test(bench: Bench) -> None:
        bench.store.release()
        bench.put("a", window_s=60)
        await bench.queue.finish()

    assert run(test) == [b"a"]
