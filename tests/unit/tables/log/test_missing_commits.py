"""Commit files that vanish under a running process are noticed by its next commit, and nothing is lost (RELY-9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

LOG = f"{REF.folder}/_delta_log"


def commit_key(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def fill(log: PartitionLog, clock: SetClock, count: int) -> None:
    for body in numbered_bodies("m", count):
        log.append([batch(body)])
    clock.advance_ms(1_000)


@pytest.mark.parametrize("gone", [[1], [3, 5], [8]], ids=str)
def test_rely_09_what_vanished_is_noticed_by_the_next_commit_and_readers_go_on(
    files: MemoryStore, open_log: OpenLog, clock: SetClock, gone: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    fill(log, clock, 8)
    for version in gone:
        files.delete(commit_key(version))
    log.append([batch(b"next")])
    assert f"commits_missing folder={REF.folder} versions={gone}" in caplog.text
    assert log.due_in_ms() == 0
    log.maintain()
    assert all_bodies(open_log()) == [*numbered_bodies("m", 8), b"next"]
    clock.advance_ms(1_000)
    log.append([batch(b"more")])
    assert caplog.text.count("commits_missing") == 1, "it is mended"


def test_rely_09_the_newest_commit_gets_its_name_back_before_another_takes_it(tmp_path: Path, clock: SetClock) -> None:
    def open_one() -> Warehouse:
        return Warehouse.open(str(tmp_path), settings=LogSettings(), clock=clock)

    warehouse = open_one()
    log = warehouse.create(REF)
    fill(log, clock, 3)
    (tmp_path / commit_key(3)).unlink()
    log.append([batch(b"next")])
    assert (tmp_path / commit_key(3)).exists() and log.due_in_ms() > 0
    again = open_one()
    assert all_bodies(again.open_partition(REF)) == [*numbered_bodies("m", 3), b"next"]
    assert [f for f in verify(again) if f.gravity is not Gravity.NOTE] == []
    warehouse.close()
    again.close()


def test_rely_09_a_store_that_only_lists_is_looked_at_by_the_sweep(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    class Remote(FaultyStore):
        def stamp(self, folder: str) -> int | None:
            return None

    log = open_log(Remote(files, cheap_look=False), orphan_keep_ms=600_000)
    fill(log, clock, 4)
    files.delete(commit_key(2))
    log.append([batch(b"next")])
    clock.advance_ms(60_000)
    log.maintain()
    log.maintain()
    assert all_bodies(open_log()) == [*numbered_bodies("m", 4), b"next"]


def test_rely_09_who_commits_alone_looks_back_once_a_second_and_lists_nothing(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    store = FaultyStore(files)
    log = open_log(store)
    fill(log, clock, 4)
    store.calls.clear()
    for body in numbered_bodies("x", 50):
        log.append([batch(body)])
    assert store.keys("names") == [] and len(store.keys("exists")) < 50


def test_rely_09_a_clean_up_of_another_process_is_no_loss(
    files: MemoryStore, open_log: OpenLog, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(log_keep_ms=60_000)
    other = open_log(checkpoint_commits=4, log_keep_ms=60_000)
    fill(log, clock, 6)
    other.refresh()
    for _ in range(15):
        other.maintain()
        clock.advance_ms(10_000)
        log.refresh()
    assert not files.exists(commit_key(1))
    log.append([batch(b"next")])
    assert "commits_missing" not in caplog.text
