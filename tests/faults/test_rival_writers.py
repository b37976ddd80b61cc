"""Processes that all append to one partition, held apart by the fence alone (fault F4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from deltamq.mq.errors import Fenced
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import NewFile, put_in_turn
from tests.faults.conftest import Judge, judged
from tests.faults.zygote import Order, Zygote, acks_of
from tests.rows import REF, batch

BUSY = {"rollup_files": 8, "checkpoint_commits": 32, "log_keep_ms": 500, "file_keep_ms": 500}


def _race(folder: Path, writers: Zygote, judge: Judge, processes: int, appends: int) -> float:
    """Let so many processes make so many appends together; return appends a second."""
    folder.mkdir(exist_ok=True)
    notes = [folder / f"w{i}.acks" for i in range(processes)]
    pids = [
        writers.start(
            Order(folder=str(folder), producer=p.stem, acks=str(p), count=appends // processes, settings=BUSY)
        )
        for p in notes
    ]
    began = None
    while began is None:
        if any(p.exists() and p.stat().st_size for p in notes):
            began = time.monotonic()
        time.sleep(0.001)
    assert [writers.wait(pid) for pid in pids] == [0] * processes
    took = time.monotonic() - began
    found = judge(notes)
    assert found.end_offset == appends // processes * processes
    assert sum(len(acks_of(p)) for p in notes) == found.end_offset
    return found.end_offset / took


@pytest.mark.parametrize("processes", [2, *(pytest.param(many, marks=pytest.mark.long) for many in (4, 8))])
def test_f4_rival_processes_lose_and_repeat_nothing(
    tmp_path: Path, writers: Zygote, judge: Judge, processes: int
) -> None:
    rate = _race(tmp_path, writers, judge, processes, 160)
    print(f"{processes} processes: {rate:.0f} appends/s together")


class Owner(LocalStore):
    """The disk of a process that may fall asleep in the middle of a commit; what it was refused is counted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.refused = 0
        self.asleep = threading.Event()
        self._awake = threading.Event()
        self._awake.set()

    def sleep(self) -> None:
        self.asleep.clear()
        self._awake.clear()

    def wake(self) -> None:
        self._awake.set()

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        if not self._awake.is_set():
            self.asleep.set()
            assert self._awake.wait(30)
        won = super().put_if_absent(key, data, durable=durable)
        self.refused += not won and "_delta_log" in key
        return won

    async def put_commit(self, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
        return await put_in_turn(self, key, data, file, durable=durable)


@pytest.mark.promise("HOST-10")
def test_f4_a_takeover_costs_one_refused_commit_at_most(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Of two processes that take a partition from each other, the one before sleeps through it, and does not notice."""
    stores = Owner(tmp_path), Owner(tmp_path)
    costs, stored, epoch = [], 0, 1
    with (
        ThreadPoolExecutor(1) as sleeper,
        closing(Warehouse.open("", store=stores[0])) as one,
        closing(Warehouse.open("", store=stores[1])) as other,
    ):
        logs = one.create(REF), other.create(REF)
        logs[0].fence("broker", epoch)
        for number in range(40):
            (old, disk), new = (logs[number % 2], stores[number % 2]), logs[1 - number % 2]
            old.append([batch(b"mine")], fence_epochs={"broker": epoch})
            before = [store.refused for store in stores]
            disk.sleep()
            late = sleeper.submit(old.append, [batch(b"late")], fence_epochs={"broker": epoch})
            assert disk.asleep.wait(30)
            new.fence("broker", epoch + 1)
            new.append([batch(b"new")], fence_epochs={"broker": epoch + 1})
            disk.wake()
            with pytest.raises(Fenced):
                late.result(30)
            for _ in range(5):
                with pytest.raises(Fenced):
                    old.append([batch(b"again")], fence_epochs={"broker": epoch})
            costs.append(sum(store.refused - was for store, was in zip(stores, before, strict=True)))
            stored, epoch = stored + 2, epoch + 1
        assert logs[0].end_offset == logs[1].end_offset == stored
    record_property("said", f"refused commits per takeover: {max(costs)} at most in {len(costs)}")
    assert max(costs) == 1, "that of the sleeper"


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_f4_fifty_thousand_contested_commits(
    tmp_path: Path, writers: Zygote, record_property: Callable[[str, object], None]
) -> None:
    """The rates say how much the fence alone costs: with tests beside it they say nothing."""
    rates = []
    for processes in (1, 2, 4, 8):
        folder = tmp_path / str(processes)
        rates.append(_race(folder, writers, judged(folder), processes, 12_000))
    record_property("said", f"appends/s of 1, 2, 4, 8 processes together: {', '.join(f'{r:.0f}' for r in rates)}")
