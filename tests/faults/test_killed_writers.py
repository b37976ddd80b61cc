"""kill -9 of writers under load at random moments (fault F1), judged from the files by pyarrow alone."""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import median

import pytest

from deltamq.tables.log.warehouse import Warehouse
from tests.faults.conftest import Judge
from tests.faults.zygote import Order, Zygote, acks_of
from tests.rows import REF

#: Roll-ups, checkpoints and clean-up happen all the time.
BUSY = {"rollup_files": 4, "checkpoint_commits": 8, "log_keep_ms": 300, "file_keep_ms": 200, "row_group_rows": 16}


def _storm(folder: Path, writers: Zygote, judge: Judge, *, rounds: int, seed: int) -> None:
    """Two producers; each round both write, are killed after a while, and go on from what they were told."""
    drawn = random.Random(seed)
    notes = {name: folder.parent / f"{folder.name}-{name}.acks" for name in ("a", "b")}
    ready_s = []
    for _ in range(rounds):
        began = time.monotonic()
        pids = []
        for name, path in notes.items():
            told = acks_of(path)
            # The request under way at the kill is repeated: it may or may not be stored.
            first = told[-1].seq + 1 if told else 0
            order = Order(
                folder=str(folder),
                producer=name,
                acks=str(path),
                first=first,
                messages=(1, 1, 1, 3, 40),
                settings=BUSY,
            )
            pids.append(writers.start(order))
        deadline = began + 300
        sizes = [len(acks_of(path)) for path in notes.values()]
        while all(len(acks_of(p)) == size for p, size in zip(notes.values(), sizes, strict=True)):
            assert time.monotonic() < deadline, "nobody serves"
            time.sleep(0.002)
        ready_s.append(time.monotonic() - began)
        time.sleep(drawn.uniform(0, 0.15))
        drawn.shuffle(pids)
        for pid in pids:
            writers.kill(pid)
            time.sleep(drawn.uniform(0, 0.01))
    found = judge(list(notes.values()))
    print(
        f"{2 * rounds} kills, {found.end_offset} messages, {found.version} commits; "
        f"serving again within {max(ready_s):.2f} s"
    )
    warehouse = Warehouse.open(str(folder))
    warehouse.open_partition(REF).verify()
    warehouse.close()
    assert median(ready_s) < 10, "the worst one tells of the machine"


@pytest.mark.promise("FLUSH-3")
@pytest.mark.parametrize("seed", [1])
def test_f1_killed_writers_lose_and_repeat_nothing(tmp_path: Path, writers: Zygote, judge: Judge, seed: int) -> None:
    _storm(tmp_path, writers, judge, rounds=5, seed=seed)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(5))
def test_f1_a_thousand_killed_writers_lose_and_repeat_nothing(
    tmp_path: Path, writers: Zygote, judge: Judge, seed: int
) -> None:
    _storm(tmp_path, writers, judge, rounds=100, seed=100 + seed)
