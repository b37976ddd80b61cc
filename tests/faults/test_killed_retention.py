"""A kill at each named point of a removal, and processes that append and remove at once (faults F2, F14)."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Final

import msgspec
import pytest

from deltamq.mq.errors import Unavailable
from deltamq.tables import failpoints
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.log.warehouse import Warehouse
from tests import witness
from tests.faults.zygote import Order, Zygote, acks_of, bodies_of
from tests.rows import REF, all_bodies, batch, numbered_bodies


class Expected(msgspec.Struct, frozen=True):
    """What a point must leave."""

    removed: bool
    temp_file: bool  #: a temporary commit file


#: In the order in which a removal passes them. Of those that appends pass, too, the fourth hit is the removal's.
OUTCOMES: Final = {
    "retain.before_commit": Expected(removed=False, temp_file=False),
    "commit.before_log_tmp": Expected(removed=False, temp_file=False),
    "commit.after_log_fsync": Expected(removed=False, temp_file=True),
    "commit.after_link": Expected(removed=True, temp_file=True),
    "commit.after_dir_fsync": Expected(removed=True, temp_file=False),
    "retain.after_commit": Expected(removed=True, temp_file=False),
}
POINTS = pytest.mark.parametrize("point", OUTCOMES)
#: Removals meet roll-ups, checkpoints and clean-up all the time.
BUSY = {"rollup_files": 4, "checkpoint_commits": 8, "log_keep_ms": 300, "file_keep_ms": 200, "row_group_rows": 16}


def judged(folder: Path, notes: list[Path]) -> witness.Testimony:
    """Everything acknowledged that is not removed is there once; removed is only the front."""
    found = witness.testify(folder / REF.folder)
    bodies = found.bodies
    low = min(bodies, default=found.end_offset)
    for ack in [ack for path in notes for ack in acks_of(path)]:
        sent = bodies_of(ack.producer, ack.seq, ack.messages)
        for i, body in enumerate(sent):
            at = ack.base_offset + i
            assert at < low or bodies[at] == body, f"{ack} is lost: {bodies.get(at)!r}"
    values = list(bodies.values())
    assert len(set(values)) == len(values), "stored twice"
    return found


@pytest.mark.promise("KEEP-7")
@POINTS
def test_f2_a_kill_in_a_removal_leaves_all_of_it_or_nothing(tmp_path: Path, writers: Zygote, point: str) -> None:
    """Two requests of two messages are appended; the third is, too, and the removal that follows it is killed."""
    notes = tmp_path / "p.acks"
    hit = 1 if point.startswith("retain.") else 4
    order = Order(
        folder=str(tmp_path),
        producer="p",
        acks=str(notes),
        messages=(2,),
        keep=4,
        maintain_every=1_000,
        failpoints=f"{point}=kill@{hit}",
    )
    assert writers.run(order) == -signal.SIGKILL
    assert len(acks_of(notes)) == 3
    expected = OUTCOMES[point]
    found = judged(tmp_path, [notes])
    assert (min(found.bodies), found.end_offset) == (2 if expected.removed else 0, 6)
    table = tmp_path / REF.folder
    assert len(list(table.glob("*.parquet"))) == 3, "files stay for those who read them"
    assert bool(list((table / "_delta_log").glob(".tmp-*"))) == expected.temp_file

    # The next one does the rest, and goes on.
    again = Order(folder=str(tmp_path), producer="p", acks=str(notes), first=3, count=2, messages=(2,), keep=4)
    assert writers.run(again) == 0
    found = judged(tmp_path, [notes])
    assert (min(found.bodies), found.end_offset) == (6, 10)


@POINTS
def test_f2_an_error_in_a_removal_is_no_loss_and_is_made_up_for(tmp_path: Path, point: str) -> None:
    warehouse = Warehouse.open(str(tmp_path))
    log = warehouse.create(REF)
    for body in numbered_bodies("m", 3):
        log.append([batch(body)])
    failpoints.arm(f"{point}=raise@1")
    try:
        with pytest.raises((FailpointHit, Unavailable)):
            log.delete_below(2)
    finally:
        failpoints.arm("")
    log.refresh()
    assert log.min_offset == (2 if OUTCOMES[point].removed else 0)
    log.delete_below(2)
    assert log.append([batch(b"after")])[0].base_offset == 3
    other = Warehouse.open(str(tmp_path))
    assert all_bodies(other.open_partition(REF)) == all_bodies(log) == [b"m-2", b"after"]
    other.close()
    warehouse.close()


def _storm(folder: Path, writers: Zygote, *, rounds: int, seed: int) -> None:
    """Two processes append and keep only the newest messages; both are killed again and again."""
    drawn = random.Random(seed)
    notes = {name: folder.parent / f"{folder.name}-{name}.acks" for name in ("a", "b")}
    for _ in range(rounds):
        pids = []
        told = {name: acks_of(path) for name, path in notes.items()}
        for name, path in notes.items():
            first = told[name][-1].seq + 1 if told[name] else 0
            order = Order(
                folder=str(folder),
                producer=name,
                acks=str(path),
                first=first,
                messages=(1, 3, 1, 20),
                keep=drawn.choice([0, 1, 30, 200]),
                settings=BUSY,
            )
            pids.append(writers.start(order))
        deadline = time.monotonic() + 300
        while any(len(acks_of(path)) == len(told[name]) for name, path in notes.items()):
            assert time.monotonic() < deadline, "nobody serves"
            time.sleep(0.002)
        time.sleep(drawn.uniform(0, 0.15))
        drawn.shuffle(pids)
        for pid in pids:
            writers.kill(pid)
        judged(folder, list(notes.values()))
    found = judged(folder, list(notes.values()))
    warehouse = Warehouse.open(str(folder))
    log = warehouse.open_partition(REF)
    assert log.end_offset == found.end_offset and log.min_offset == min(found.bodies, default=found.end_offset) > 0
    log.verify()
    warehouse.close()


def test_f14_killed_processes_that_append_and_remove_lose_and_repeat_nothing(tmp_path: Path, writers: Zygote) -> None:
    _storm(tmp_path, writers, rounds=4, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(5))
def test_f14_a_thousand_killed_processes_that_append_and_remove(tmp_path: Path, writers: Zygote, seed: int) -> None:
    _storm(tmp_path, writers, rounds=100, seed=100 + seed)
