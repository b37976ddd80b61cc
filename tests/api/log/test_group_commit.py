"""Group commit: what waits during a commit is the next one, in order, and one bad part fails nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from deltamq.api.log.group_commit import HERE, CommitQueue, Gather
from deltamq.api.log.lane import Lane
from deltamq.api.log.parts import PendingRequest, RecordRows, RequestPart
from deltamq.api.wire.rows import ArrowRows, Rows
from deltamq.mq.errors import Conflict, DeltaMQError, OffsetMismatch, StorageFull, Unknown
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart, Stamped
from deltamq.tables.log.batch import Appended, MessageIds
from deltamq.tables.settings import Flush
from deltamq.tables.store.calls import on_a_thread
from deltamq.tables.turn import Turn


class FakeLog:
    """A partition in memory: it notes every commit, and can be held or made to fail."""

    def __init__(self) -> None:
        self.published_s = 0.0
        self.commits: list[list[Any]] = []
        self.flushes: list[Flush | None] = []
        self.knew: list[Mapping[str, int] | None] = []
        self.end = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.error: DeltaMQError | None = None
        self.turn = Turn()

    async def append_in_turn(
        self,
        rows: pa.RecordBatch,
        parts: Sequence[RowsPart],
        *,
        flush: Flush | None = None,
        expected_offset: int | None = None,
        fence_epochs: Mapping[str, int] | None = None,
        **ahead: Any,
    ) -> list[Appended]:
        self.entered.release()
        assert await on_a_thread(partial(self.gate.wait, 10))
        bodies = rows.column("body").to_pylist()
        if self.error is not None:
            raise self.error
        if b"conflict" in bodies:
            raise Conflict("no")
        if b"bug" in bodies:
            raise RuntimeError("surprise")
        if expected_offset not in (None, self.end):
            raise OffsetMismatch("no")
        self.commits.append(bodies)
        self.knew.append(fence_epochs)
        self.flushes.append(flush)
        results = []
        for part in parts:
            ids = pa.RecordBatch.from_pydict({"message_id": [f"id{self.end + i}" for i in range(part.count)]})
            rows = Stamped(ids, [part], batch_id="", append_us=0, start=self.end)
            results.append(
                Appended(
                    base_offset=self.end,
                    count=part.count,
                    duplicate=False,
                    durable=flush is Flush.SYNC,
                    version=len(self.commits),
                    message_ids=MessageIds(rows, 0, part.count),
                )
            )
            self.end += part.count
        return results


class Bench:
    """A queue over a fake log, and the partition that owns both."""

    def __init__(self, gather_s: float) -> None:
        self.log = FakeLog()
        self.loop = asyncio.get_running_loop()
        self.queue = CommitQueue(self, Lane(self.loop, None), self.loop, Gather(gather_s))
        self.groups: list[int] = []

    def open(self) -> FakeLog:
        return self.log

    def codec(self) -> None:
        return None

    def committed(self, parts: Sequence[RequestPart], took_s: float, published_s: float) -> None:
        self.groups.append(len(parts))

    def put(self, *bodies: str, flush: Flush = Flush.SYNC, **part: Any) -> RequestPart:
        pending = PendingRequest(1, self.loop)
        rows = Rows(len(bodies), sum(map(len, bodies)), body=list(bodies))
        made = RequestPart(rows, pending, flush, **part)
        self.queue.put(made)
        return made

    async def committing(self) -> None:
        await asyncio.to_thread(self.log.entered.acquire)

    async def together(self, *bodies: str) -> None:
        """Commit "a" alone, and these parts in the next commit, the last one of them when "a" is answered."""
        self.log.gate.clear()
        parts = [self.put("a")]
        await self.committing()
        parts += [self.put(body) for body in bodies[:-1]]
        self.log.gate.set()
        await parts[0].pending.wait()
        parts.append(self.put(bodies[-1]))
        await self.committing()
        for part in parts:
            await part.pending.wait()


def on_a_queue(test: Any = None, *, gather_s: float = HERE.seconds) -> Any:
    """Run a test with a queue that gathers parts for `gather_s`."""
    if test is None:
        return partial(on_a_queue, gather_s=gather_s)

    def run() -> None:
        async def inside() -> None:
            bench = Bench(gather_s)
            try:
                await asyncio.wait_for(test(bench), 20)
            finally:
                bench.log.gate.set()

        asyncio.run(inside())

    run.__name__ = test.__name__
    return run


@on_a_queue
async def test_an_idle_partition_commits_at_once(bench: Bench) -> None:
    part = bench.put("a")
    await part.pending.wait()
    assert part.appended is not None and part.appended.base_offset == 0
    assert bench.log.commits == [[b"a"]]


@on_a_queue
async def test_what_arrives_during_a_commit_is_the_next_one(bench: Bench) -> None:
    bench.log.gate.clear()
    parts = [bench.put("a")]
    await bench.committing()
    parts += [bench.put("b"), bench.put("c", "d"), bench.put("e")]
    bench.log.gate.set()
    for part in parts:
        await part.pending.wait()
    assert bench.log.commits == [[b"a"], [b"b", b"c", b"d", b"e"]]
    assert [p.appended and (p.appended.base_offset, p.appended.count) for p in parts] == [
        (0, 1),
        (1, 1),
        (2, 2),
        (4, 1),
    ]
    assert [p.appended and p.appended.message_ids.to_pylist() for p in parts][2] == ["id2", "id3"]
    assert bench.groups == [1, 3]


@on_a_queue(gather_s=60)
async def test_who_is_answered_is_waited_for_by_those_who_came_meanwhile(bench: Bench) -> None:
    bench.log.gate.clear()
    parts = [bench.put("a")]
    await bench.committing()
    parts += [bench.put("b"), bench.put("c")]
    bench.log.gate.set()
    await parts[0].pending.wait()
    assert not bench.log.entered.acquire(timeout=0.05), "the next commit waits for the first client"
    parts.append(bench.put("d"))
    for part in parts:
        await part.pending.wait()
    assert bench.log.commits == [[b"a"], [b"b", b"c", b"d"]]


@on_a_queue(gather_s=60)
async def test_clients_that_wait_for_a_common_commit_have_the_next_one_together(bench: Bench) -> None:
    await bench.together("b", "c")
    parts = [bench.put("d")]
    assert not bench.log.entered.acquire(timeout=0.05), "it waits for the other one"
    parts.append(bench.put("e"))
    for part in parts:
        await part.pending.wait()
    assert bench.log.commits == [[b"a"], [b"b", b"c"], [b"d", b"e"]]


@pytest.mark.parametrize("gather_s", [HERE.seconds, 0])
def test_who_is_alone_behind_a_common_commit_waits_for_the_others_but_not_for_ever(gather_s: float) -> None:
    @on_a_queue(gather_s=gather_s)
    async def run(bench: Bench) -> None:
        await bench.together("b", "c")
        for alone in ("d", "e"):
            await bench.put(alone).pending.wait()
        assert bench.log.commits == [[b"a"], [b"b", b"c"], [b"d"], [b"e"]]

    run()


@on_a_queue(gather_s=0)
async def test_what_comes_later_than_answers_to_a_commit_waits_for_nobody(bench: Bench) -> None:
    await bench.together("b", "c")
    late = bench.put("d")
    assert bench.log.entered.acquire(timeout=10), "begun without the event loop, which is held here"
    await late.pending.wait()


@on_a_queue(gather_s=60)
async def test_a_queue_that_finishes_waits_for_no_other_part(bench: Bench) -> None:
    await bench.together("b", "c")
    await bench.queue.finish()
    last = bench.put("d")
    await bench.queue.finish()
    assert last.appended is not None and bench.log.commits[2:] == [[b"d"]]


@on_a_queue(gather_s=60)
async def test_a_queue_that_finishes_in_a_commit_begins_the_next_one_at_once(bench: Bench) -> None:
    bench.log.gate.clear()
    parts = [bench.put("a")]
    await bench.committing()
    parts += [bench.put("b"), bench.put("c")]
    finishing = asyncio.ensure_future(bench.queue.finish())
    await asyncio.sleep(0)
    bench.log.gate.set()
    await finishing
    assert all(part.appended for part in parts) and bench.log.commits == [[b"a"], [b"b", b"c"]]


@on_a_queue(gather_s=60)
async def test_a_large_commit_lets_the_next_part_wait_for_nobody(bench: Bench) -> None:
    await bench.together("b" * 50_000, "c" * 50_000)
    last = bench.put("d")
    assert bench.log.entered.acquire(timeout=10), "begun without the event loop, which is held here"
    await last.pending.wait()
    assert bench.log.commits[2:] == [[b"d"]]


@on_a_queue
async def test_requests_of_producers_keep_their_own_stamps_among_others(bench: Bench) -> None:
    bench.log.gate.clear()
    first = bench.put("0")
    await bench.committing()
    stamp = ProducerStamp("p", 0, None, 1)
    parts = [bench.put("1"), bench.put("2", stamp=stamp), bench.put("3"), bench.put("4")]
    batch = pa.RecordBatch.from_pydict({"body": [b"5"], "key": ["k"]})
    arrow = RequestPart(ArrowRows(1, 9, batch), PendingRequest(1, bench.loop), Flush.SYNC)
    bench.queue.put(arrow)
    bench.log.gate.set()
    for part in (first, *parts, arrow):
        await part.pending.wait()
    assert bench.log.commits == [[b"0"], [b"1", b"2", b"3", b"4", b"5"]]
    assert [p.appended and p.appended.base_offset for p in (*parts, arrow)] == [1, 2, 3, 4, 5]


@on_a_queue
async def test_expected_offset_is_a_commit_of_its_own_in_its_place(bench: Bench) -> None:
    bench.log.gate.clear()
    first = bench.put("a")
    await bench.committing()
    right, wrong = bench.put("b", expected_offset=1), bench.put("x", expected_offset=1)
    after = bench.put("c")
    bench.log.gate.set()
    for part in (first, right, wrong, after):
        await part.pending.wait()
    assert bench.log.commits == [[b"a"], [b"b"], [b"c"]]
    assert isinstance(wrong.error, OffsetMismatch) and after.error is None


@on_a_queue
async def test_meta_02_parts_that_know_of_other_fences_are_commits_of_their_own(bench: Bench) -> None:
    bench.log.gate.clear()
    parts = [bench.put("a", fence_epochs={"broker": 1})]
    await bench.committing()
    parts += [
        bench.put(body, fence_epochs={"broker": epoch}) for body, epoch in (("b", 1), ("c", 1), ("d", 2), ("e", 1))
    ]
    bench.log.gate.set()
    for part in parts:
        await part.pending.wait()
    assert bench.log.commits == [[b"a"], [b"b", b"c"], [b"d"], [b"e"]]
    assert bench.log.knew == [{"broker": 1}, {"broker": 1}, {"broker": 2}, {"broker": 1}]


@on_a_queue
async def test_a_refused_part_does_not_fail_its_neighbours(bench: Bench) -> None:
    bench.log.gate.clear()
    first = bench.put("a")
    await bench.committing()
    good, bad, late = bench.put("b"), bench.put("conflict"), bench.put("c")
    bench.log.gate.set()
    for part in (first, good, bad, late):
        await part.pending.wait()
    assert isinstance(bad.error, Conflict) and good.error is None and late.error is None
    assert bench.log.commits == [[b"a"], [b"b"], [b"c"]]


@on_a_queue
async def test_rows_that_cannot_be_read_do_not_fail_their_neighbours(bench: Bench) -> None:
    def encode(records: Sequence[str]) -> pa.RecordBatch:
        if "unreadable" in records:
            raise IndexError("no decoder has foreseen this")
        return pa.RecordBatch.from_pydict({"body": [record.encode() for record in records]})

    def put(*records: str) -> RequestPart:
        part = RequestPart(RecordRows(records, encode), PendingRequest(1, bench.loop), Flush.SYNC)
        bench.queue.put(part)
        return part

    bench.log.gate.clear()
    parts = [put("a")]
    await bench.committing()
    parts += [put("b"), put("unreadable"), put("c")]
    bench.log.gate.set()
    for part in parts:
        await part.pending.wait()
    assert [part.error is None for part in parts] == [True, True, False, True]
    assert bench.log.commits == [[b"a"], [b"b"], [b"c"]]


@on_a_queue
async def test_a_full_disk_fails_what_was_in_the_commit_and_the_queue_goes_on(bench: Bench) -> None:
    bench.log.error = StorageFull()
    part = bench.put("a")
    await part.pending.wait()
    assert isinstance(part.error, StorageFull)
    bench.log.error = None
    again = bench.put("a")
    await again.pending.wait()
    assert again.error is None and bench.log.commits == [[b"a"]]


@on_a_queue
async def test_a_failure_that_nobody_foresaw_is_an_unknown_outcome(bench: Bench) -> None:
    part = bench.put("bug")
    await part.pending.wait()
    assert isinstance(part.error, Unknown)


@pytest.mark.parametrize(
    ("flushes", "used"), [((Flush.ASYNC, Flush.ASYNC), Flush.ASYNC), ((Flush.ASYNC, Flush.SYNC), Flush.SYNC)]
)
def test_a_commit_is_as_durable_as_any_of_its_requests_wants(flushes: tuple[Flush, ...], used: Flush) -> None:
    @on_a_queue
    async def run(bench: Bench) -> None:
        bench.log.gate.clear()
        parts = [bench.put("a")]
        await bench.committing()
        parts += [bench.put("b", flush=f) for f in flushes]
        bench.log.gate.set()
        for part in parts:
            await part.pending.wait()
        assert bench.log.flushes[1] is used
        assert all(p.appended is not None and p.appended.durable is (used is Flush.SYNC) for p in parts[1:])

    run()
