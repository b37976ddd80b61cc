"""The event loop makes the commits, and never waits for a disk, a lock or a large batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.log.group_commit import CommitQueue
from deltamq.api.log.lane import Lane
from deltamq.api.log.parts import PendingRequest, RequestPart
from deltamq.api.wire.rows import Rows
from deltamq.api.wire.steps import Step, Steps
from deltamq.mq.errors import OffsetMismatch
from deltamq.tables import failpoints
from deltamq.tables.delta.encode import Encoded, encode_stamped
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import Flush
from deltamq.tables.store.native import NativePool, native_library
from tests.rows import REF, all_bodies, batch

pytestmark = pytest.mark.skipif(native_library() is None, reason="there was no C compiler")


class Bench:
    """A queue over a real log."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.loop = asyncio.get_running_loop()
        self.lane = Lane(self.loop, NativePool(2))
        self.queue = CommitQueue(self, self.lane, self.loop)
        self.commits: list[int] = []

    def open(self) -> PartitionLog:
        return self.log

    def codec(self) -> None:
        return None

    def committed(self, parts: Sequence[RequestPart], took_s: float, published_s: float) -> None:
        self.commits.append(len(parts))

    def put(self, *bodies: str, **part: Any) -> RequestPart:
        rows = Rows(len(bodies), sum(map(len, bodies)), body=list(bodies))
        made = RequestPart(rows, PendingRequest(1, self.loop), **{"flush": Flush.SYNC, **part})
        self.queue.put(made)
        return made


Test = Callable[[Bench], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Test], PartitionLog]:
    """Run a test on a loop of its own; its log may be read by another process afterwards."""

    def on_a_log(test: Test) -> PartitionLog:
        warehouse = Warehouse.open(str(tmp_path))

        async def inside() -> None:
            bench = Bench(warehouse.create(REF))
            await asyncio.wait_for(test(bench), 30)
            await bench.queue.finish()
            bench.lane.stop()

        asyncio.run(inside())
        warehouse.close()
        return Warehouse.open(str(tmp_path)).create(REF)

    return on_a_log


def test_commits_are_durable_and_in_order(run: Callable[[Test], PartitionLog]) -> None:
    async def test(bench: Bench) -> None:
        parts = [bench.put(f"{number}", f"and {number}") for number in range(50)]
        for part in parts:
            await part.pending.wait()
        assert [part.appended and part.appended.base_offset for part in parts] == list(range(0, 100, 2))
        assert all(part.appended and part.appended.durable for part in parts)
        assert sum(bench.commits) == 50

    expected = [body.encode() for number in range(50) for body in (f"{number}", f"and {number}")]
    assert all_bodies(run(test)) == expected


def test_what_takes_long_to_encode_is_encoded_by_a_thread(
    run: Callable[[Test], PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    loops, encode = list[bool](), encode_stamped

    def noted(*rows: Any, **options: Any) -> Encoded:
        loops.append(threading.current_thread() is threading.main_thread())
        return encode(*rows, **options)

    monkeypatch.setattr("deltamq.tables.log.appender.encode_stamped", noted)

    async def test(bench: Bench) -> None:
        for body in ("first", "x" * 200_000, "small"):
            await bench.put(body).pending.wait()
        assert loops == [True, False, True] and bench.commits == [1, 1, 1]

    assert list(map(len, all_bodies(run(test)))) == [5, 200_000, 5]


def test_a_commit_waits_for_another_threads_turn_and_the_loop_goes_on(run: Callable[[Test], PartitionLog]) -> None:
    async def test(bench: Bench) -> None:
        await bench.put("first").pending.wait()
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with bench.log.turn:
                entered.set()
                assert leave.wait(20)

        holding = bench.loop.run_in_executor(None, hold)
        await asyncio.to_thread(entered.wait, 20)
        part = bench.put("a")
        await asyncio.sleep(0)  # the loop is free
        assert part.appended is None
        leave.set()
        await part.pending.wait()
        await holding
        assert part.appended is not None

    assert all_bodies(run(test)) == [b"first", b"a"]


def test_earlier_appends_that_are_not_durable_are_synced_first(run: Callable[[Test], PartitionLog]) -> None:
    async def test(bench: Bench) -> None:
        await bench.put("a").pending.wait()
        for body in ("b", "c"):
            await bench.put(body, flush=Flush.ASYNC).pending.wait()
        assert bench.log.unsynced
        part = bench.put("d")
        await part.pending.wait()
        assert part.appended is not None and part.appended.durable and not bench.log.unsynced

    assert all_bodies(run(test)) == [b"a", b"b", b"c", b"d"]


def test_a_race_that_the_loop_loses_is_run_again(tmp_path: Path, run: Callable[[Test], PartitionLog]) -> None:
    async def test(bench: Bench) -> None:
        rival = Warehouse.open(str(tmp_path)).create(REF)
        for number in range(20):
            await asyncio.to_thread(rival.append, [batch(f"rival {number}".encode())])
            part = bench.put(f"{number}")
            await part.pending.wait()
            assert part.appended is not None and part.appended.base_offset == 2 * number + 1

    expected = [body for n in range(20) for body in (f"rival {n}".encode(), f"{n}".encode())]
    assert all_bodies(run(test)) == expected


def test_a_part_that_is_refused_fails_alone_and_the_turn_is_given_back(run: Callable[[Test], PartitionLog]) -> None:
    async def test(bench: Bench) -> None:
        parts = [bench.put("a"), bench.put("b", expected_offset=7), bench.put("c")]
        for part in parts:
            await part.pending.wait()
        assert isinstance(parts[1].error, OffsetMismatch)
        assert bench.log.turn.ask()
        bench.log.turn.give_back()

    assert all_bodies(run(test)) == [b"a", b"c"]


def test_a_failure_that_nobody_foresaw_gives_the_turn_back(
    run: Callable[[Test], PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        with monkeypatch.context() as broken:
            broken.setattr("deltamq.api.log.parts.failpoint", lambda _: 1 // 0)
            part = bench.put("a")
            await part.pending.wait()
        assert part.error is not None and part.error.code == "outcome_unknown"
        await bench.put("b").pending.wait()

    assert all_bodies(run(test)) == [b"b"]


class _Angry:
    def part_done(self) -> None:
        raise RuntimeError("not now")


def test_who_fails_when_told_of_a_commit_holds_up_no_other(tmp_path: Path) -> None:
    warehouse = Warehouse.open(str(tmp_path))
    refs = [PartitionRef(Space.TOPICS, "orders", f"orders#{number}@broker-a") for number in range(8)]

    async def inside() -> None:
        lane = Lane(asyncio.get_running_loop(), NativePool(1))
        benches = [Bench(warehouse.create(ref)) for ref in refs]
        parts = []
        for bench in benches:
            await bench.put("first").pending.wait()
        for bench in benches:
            queue = CommitQueue(bench, lane, bench.loop)
            angry = RequestPart(Rows(1, 1, body=["a"]), _Angry(), Flush.SYNC)
            calm = RequestPart(Rows(1, 1, body=["b"]), PendingRequest(1, bench.loop), Flush.SYNC)
            queue.put(angry)
            queue.put(calm)
            parts += [angry, calm]
        for part in parts[1::2]:
            await part.pending.wait()
        assert all(part.appended for part in parts)
        for made in (lane, *(bench.lane for bench in benches)):
            made.stop()

    asyncio.run(asyncio.wait_for(inside(), 30))
    warehouse.close()


@pytest.mark.parametrize("error", [None, RuntimeError("not now")])
def test_a_commit_without_file_calls_ends_after_it_was_begun(error: Exception | None) -> None:
    """Its request is not ready to be told before that: it would never be answered."""

    async def nothing_to_store() -> None:
        if error is not None:
            raise error

    async def inside() -> None:
        lane, told = Lane(asyncio.get_running_loop(), NativePool(1)), list[Exception | None]()
        lane.begin(nothing_to_store(), told.append)
        assert not told
        await asyncio.sleep(0)
        assert told == [error]
        lane.stop()

    asyncio.run(inside())


@pytest.mark.parametrize("armed", ["", "no.such.point=raise"], ids=["native", "in Python"])
def test_look_17_the_steps_of_a_commit_lie_one_behind_the_other(
    run: Callable[[Test], PartitionLog], armed: str
) -> None:
    """They do where the native part makes the file calls, and where a thread does."""
    noted: list[Step] = []

    async def test(bench: Bench) -> None:
        for number in range(3):
            steps = Steps()
            parts = [bench.put("measured", steps=steps), bench.put("not measured")]
            for part in parts:
                await part.pending.wait()
            noted.extend(steps)
            assert steps.longest_s()["commit"] == steps_s(noted[number])

    failpoints.arm(armed)
    try:
        run(test)
    finally:
        failpoints.arm("")
    versions = [commit.facts["deltamq.commit.version"] for commit in noted]
    assert versions[0] == 1 and versions == sorted(set(versions))
    for number, commit in enumerate(noted):
        assert commit.name == "commit"
        assert commit.facts["deltamq.commit.requests"] in (1, 2)
        names = [step.name for step in commit.parts]
        # the first append syncs what it finds
        first = [] if number else ["publish", "apply"]
        assert names == ["queue", "encode", *first, "publish", "apply"]
        times = [commit.began_s, *(at for step in commit.parts for at in (step.began_s, step.ended_s)), commit.ended_s]
        assert times == sorted(times)


def steps_s(step: Step) -> float:
    return step.ended_s - step.began_s
