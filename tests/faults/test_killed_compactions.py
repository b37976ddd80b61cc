"""kill -9 of a compaction at each of its points, and beside writers and removals (SPEC SPARK-8, fault F14)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
import pytest

from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.verification import Gravity, verify
from tests import witness
from tests.faults.compaction_process import conf_of, run
from tests.faults.test_killed_retention import BUSY, judged
from tests.faults.zygote import Order, Zygote, acks_of
from tests.rows import REF, all_bodies, batch, numbered_bodies

pytestmark = pytest.mark.promise("PIPE-13")


_ROOT: Final = Path(__file__).parents[2]


class Expected(msgspec.Struct, frozen=True):
    """What a kill there must leave."""

    done: bool
    new_file: bool


OUTCOMES: Final = {
    "compact.before_put": Expected(done=False, new_file=False),
    "commit.after_data_fsync": Expected(done=False, new_file=True),
    "commit.before_log_tmp": Expected(done=False, new_file=True),
    "commit.after_log_fsync": Expected(done=False, new_file=True),
    "commit.after_link": Expected(done=True, new_file=True),
    "commit.after_dir_fsync": Expected(done=True, new_file=True),
    "compact.after_commit": Expected(done=True, new_file=True),
}
#: One with each outcome; `make faults` alone kills at the others.
_SHORT: Final = ("compact.before_put", "commit.after_log_fsync", "commit.after_link")


def compaction(folder: Path, points: str, *once: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.compaction_process", str(folder), points, *once]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)


def sound(folder: Path) -> bool:
    warehouse = Warehouse.open(str(folder))
    found = [one for one in verify(warehouse) if one.gravity is not Gravity.NOTE]
    warehouse.close()
    return found == []


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in _SHORT else pytest.mark.long) for point in OUTCOMES]
)
def test_f2_a_kill_in_a_compaction_leaves_all_of_it_or_nothing(tmp_path: Path, point: str) -> None:
    warehouse = Warehouse.open(str(tmp_path))
    log = warehouse.create(REF)
    bodies = numbered_bodies("m", 90)
    drawn = random.Random(1)
    sent = [body + drawn.randbytes(500).hex().encode() for body in bodies]
    for seq in range(30):
        log.append([batch(*sent[3 * seq : 3 * seq + 3], producer="p", seq=seq)])
    with compaction(tmp_path, f"{point}=kill@1") as process:
        assert process.wait(60) == -signal.SIGKILL
    files = len(witness.testify(tmp_path / REF.folder).files)
    there = len(list((tmp_path / REF.folder).glob("*.parquet")))
    assert (files < 30) == OUTCOMES[point].done
    assert (there > 30) == OUTCOMES[point].new_file

    # The writer goes on, the next run does the rest, and every request is still known.
    assert log.append([batch(b"goes on", producer="p", seq=30)])[0].base_offset == 90
    run(conf_of(str(tmp_path)))
    close_warehouses()
    other = Warehouse.open(str(tmp_path))
    again = other.open_partition(REF)
    assert len(again.files) < 20 and all_bodies(again) == [*sent, b"goes on"]
    known = again.known_producer("p")
    assert known is not None and len(known.parts) >= 4
    for seq in sorted(known.parts)[:-1]:
        told = again.append([batch(*[b"x"] * 3, producer="p", seq=seq)])[0]
        assert (told.base_offset, told.duplicate) == (3 * seq, True)
    other.close()
    warehouse.close()
    assert sound(tmp_path)


def _storm(folder: Path, writers: Zygote, *, rounds: int, seed: int) -> None:
    """Two processes append, roll up and remove, a third compacts; all are killed again and again."""
    drawn = random.Random(seed)
    notes = {name: folder.parent / f"{folder.name}-{name}.acks" for name in ("a", "b")}
    compacted = 0
    settings = {**BUSY, "rollup_files": 8}
    Warehouse.open(str(folder)).create(REF)
    for _ in range(rounds):
        told = {name: acks_of(path) for name, path in notes.items()}
        pids = []
        for name, path in notes.items():
            first = told[name][-1].seq + 1 if told[name] else 0
            keep = drawn.choice([-1, 2_000])
            order = Order(
                folder=str(folder), producer=name, acks=str(path), first=first, messages=(3, 200, 1), keep=keep,
                settings=settings,
            )  # fmt: skip
            pids.append(writers.start(order))
        with compaction(folder, "") as process:
            assert process.stdout is not None
            while json.loads(process.stdout.readline())["made"] == 0:
                pass
            compacted += 1
            time.sleep(drawn.uniform(0, 0.1))
            process.kill()
        for pid in pids:
            writers.kill(pid)
        judged(folder, list(notes.values()))
    assert compacted == rounds
    warehouse = Warehouse.open(str(folder))
    log = warehouse.open_partition(REF)
    assert log.end_offset == judged(folder, list(notes.values())).end_offset
    log.verify()
    warehouse.close()


def test_f14_killed_processes_that_append_remove_and_compact_lose_and_repeat_nothing(
    tmp_path: Path, writers: Zygote
) -> None:
    _storm(tmp_path, writers, rounds=2, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(3))
def test_f14_hundreds_of_killed_processes_that_append_remove_and_compact(
    tmp_path: Path, writers: Zygote, seed: int
) -> None:
    _storm(tmp_path, writers, rounds=60, seed=100 + seed)
