"""A kill, an error and a pause at each named point of a commit, and what each must leave (faults F2, F3)."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from deltamq.mq.errors import Unavailable
from deltamq.tables import failpoints
from deltamq.tables.delta.snapshot import log_versions
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from tests.faults.conftest import Judge
from tests.faults.zygote import Order, Zygote, acks_of
from tests.rows import REF, all_bodies, batch


class Expected(msgspec.Struct, frozen=True):
    """What a point must leave: whether the batch is in the table, and what else may lie about."""

    stored: bool
    data_file: bool  #: a data file that no commit names
    temp_file: bool  #: a temporary commit file


#: The names are API (tests/faults/README.md). In the order in which an append passes them.
OUTCOMES: Final = {
    "commit.after_data_write": Expected(stored=False, data_file=True, temp_file=False),
    "commit.before_log_tmp": Expected(stored=False, data_file=True, temp_file=False),
    "commit.after_data_fsync": Expected(stored=False, data_file=True, temp_file=True),
    "commit.after_log_fsync": Expected(stored=False, data_file=True, temp_file=True),
    "commit.after_link": Expected(stored=True, data_file=False, temp_file=True),
    "commit.after_dir_fsync": Expected(stored=True, data_file=False, temp_file=False),
}
POINTS = pytest.mark.parametrize("point", OUTCOMES)
#: So that a pause of a second is a long one.
HASTY: Final[dict[str, Any]] = {"rollup_files": 4, "checkpoint_commits": 3, "log_keep_ms": 200, "file_keep_ms": 100}


@pytest.mark.promise("LOG-4")
@POINTS
@pytest.mark.parametrize("hit", [1, pytest.param(3, marks=pytest.mark.long)])
def test_f2_a_kill_at_a_point_leaves_what_the_table_says(
    tmp_path: Path, writers: Zygote, judge: Judge, point: str, hit: int
) -> None:
    notes = tmp_path / "p.acks"
    order = Order(folder=str(tmp_path), producer="p", acks=str(notes), messages=(2,), failpoints=f"{point}=kill@{hit}")
    assert writers.run(order) == -signal.SIGKILL
    assert [ack.seq for ack in acks_of(notes)] == list(range(hit - 1))
    expected = OUTCOMES[point]
    found = judge([notes])
    assert found.end_offset == 2 * (hit - 1 + expected.stored)
    table = tmp_path / REF.folder
    loose = {p.name for p in table.glob("*.parquet")} - found.files.keys()
    assert bool(loose) == expected.data_file
    assert bool(list((table / "_delta_log").glob(".tmp-*"))) == expected.temp_file

    # The producer repeats the request under way: its original offsets if it was stored, the next ones if not.
    again = Order(folder=str(tmp_path), producer="p", acks=str(notes), first=hit - 1, count=1, messages=(2,))
    assert writers.run(again) == 0
    last = acks_of(notes)[-1]
    assert (last.base_offset, last.duplicate) == (2 * (hit - 1), expected.stored)
    assert judge([notes]).end_offset == 2 * hit


@POINTS
def test_f2_an_error_at_a_point_is_no_loss_and_no_repeat(tmp_path: Path, point: str) -> None:
    """The process lives on and repeats the request."""
    warehouse = Warehouse.open(str(tmp_path))
    log = warehouse.create(REF)
    log.append([batch(b"before")])
    request = batch(b"x", b"y", producer="p", seq=1)
    failpoints.arm(f"{point}=raise@1")
    try:
        with pytest.raises((FailpointHit, Unavailable)):
            log.append([request])
    finally:
        failpoints.arm("")
    again = log.append([request])[0]
    assert (again.base_offset, again.duplicate) == (1, OUTCOMES[point].stored)
    assert log.append([batch(b"after")])[0].base_offset == 3
    other = Warehouse.open(str(tmp_path))
    assert all_bodies(other.open_partition(REF)) == all_bodies(log) == [b"before", b"x", b"y", b"after"]
    other.close()
    warehouse.close()


@pytest.mark.parametrize("point", ["commit.after_data_fsync", "commit.after_log_fsync", "commit.after_link"])
def test_f2_a_kill_in_a_roll_up_changes_no_message(tmp_path: Path, writers: Zygote, judge: Judge, point: str) -> None:
    """A roll-up passes the same points. It is the fifth commit: four appends are due for one."""
    notes = tmp_path / "p.acks"
    order = Order(
        folder=str(tmp_path),
        producer="p",
        acks=str(notes),
        failpoints=f"{point}=kill@5",
        maintain_every=1,
        settings={"rollup_files": 4},
    )
    assert writers.run(order) == -signal.SIGKILL
    assert len(acks_of(notes)) == 4
    judge([notes])
    again = Order(folder=str(tmp_path), producer="p", acks=str(notes), first=4, count=6, maintain_every=1)
    assert writers.run(again) == 0
    assert judge([notes]).end_offset == 10


# F3: a pause longer than anything is kept.


def _others_move_on(folder: Path, writers: Zygote, notes: Path, known: int) -> None:
    """Append, checkpoint and clean up until the version that the sleeper knows, and the next, are gone."""
    warehouse = Warehouse.open(str(folder), settings=LogSettings(**HASTY))
    log = warehouse.open_partition(REF)
    lines = []
    seq = 0
    deadline = time.monotonic() + 30
    while log_versions(warehouse.store, REF.folder)[0][0] <= known + 1:
        assert time.monotonic() < deadline, "clean-up never came"
        result = log.append([batch(f"other/{seq}/0".encode(), producer="other", seq=seq)])[0]
        lines.append(f'["other",{seq},1,{result.base_offset},false]\n')
        seq += 1
        log.maintain()
        time.sleep(0.01)
    notes.write_text("".join(lines))
    warehouse.close()


@POINTS
def test_f3_a_writer_that_was_stopped_for_long_cannot_write_into_the_past(
    tmp_path: Path, writers: Zygote, judge: Judge, point: str
) -> None:
    """SIGSTOP in the middle of its third commit; SIGCONT when its version and the next are cleaned up."""
    mine, others = tmp_path / "p.acks", tmp_path / "other.acks"
    order = Order(
        folder=str(tmp_path),
        producer="p",
        acks=str(mine),
        count=6,
        messages=(2,),
        failpoints=f"{point}=stop@3",
        maintain_every=1_000,
        settings=HASTY,
    )
    pid = writers.start(order)
    writers.wait_until_stopped(pid)
    known = 2
    _others_move_on(tmp_path, writers, others, known)
    os.kill(pid, signal.SIGCONT)
    assert writers.wait(pid) == 0
    found = judge([mine, others])
    acks = acks_of(mine)
    assert [ack.seq for ack in acks] == list(range(6))
    assert found.end_offset == 12 + len(acks_of(others))
    # What was stored before the pause kept its place; what was not came behind all that the others wrote.
    assert (acks[2].base_offset == 4) == OUTCOMES[point].stored


def _stop_and_go(folder: Path, writers: Zygote, judge: Judge, *, turns: int, seed: int) -> None:
    """Three writers, one of them always stopped for longer than commits are kept, wherever it just is."""
    drawn = random.Random(seed)
    notes = [folder / f"{name}.acks" for name in "abc"]
    pids = [
        writers.start(Order(folder=str(folder), producer=p.stem, acks=str(p), count=20 * turns, settings=HASTY))
        for p in notes
    ]
    for turn in range(turns):
        time.sleep(drawn.uniform(0, 0.1))
        os.kill(pids[turn % 3], signal.SIGSTOP)
        time.sleep(drawn.uniform(0.25, 0.6))
        os.kill(pids[turn % 3], signal.SIGCONT)
    assert [writers.wait(pid) for pid in pids] == [0, 0, 0]
    assert judge(notes).end_offset == 60 * turns


def test_f3_writers_that_are_stopped_anywhere_and_continued_lose_nothing(
    tmp_path: Path, writers: Zygote, judge: Judge
) -> None:
    _stop_and_go(tmp_path, writers, judge, turns=3, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(5))
def test_f3_five_hundred_pauses(tmp_path: Path, writers: Zygote, judge: Judge, seed: int) -> None:
    _stop_and_go(tmp_path, writers, judge, turns=100, seed=seed)
