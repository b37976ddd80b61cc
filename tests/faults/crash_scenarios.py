"""Scenarios of a log on a disk that keeps every state a power cut may leave (see `test_crash_states`)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest

from deltamq.mq.errors import DeltaMQError
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush, LogSettings
from tests.faults.crash_disk import CrashDisk, DiskStore
from tests.rows import REF, batch
from tests.set_clock import SetClock

__all__ = ["ASYNC", "DURABLE", "SETTINGS", "Acked", "Gone", "Machine", "PutUp", "async_after_clean_up"]

SETTINGS: Final = LogSettings(
    rollup_files=3,
    checkpoint_commits=4,
    log_keep_ms=1_000,
    file_keep_ms=1_000,
    orphan_keep_ms=10_000,
    flush_interval_ms=3_600_000,
)


class Acked(msgspec.Struct, frozen=True):
    """The answer to a producer: this request is at these offsets."""

    seq: int
    bodies: tuple[bytes, ...]
    base_offset: int
    durable: bool


class Gone(msgspec.Struct, frozen=True):
    """The answer to retention: nothing below this offset is in the log any more."""

    below: int


class PutUp(msgspec.Struct, frozen=True):
    """The answer to the writer of a fence: the log ended here, and everything before the fence is durable."""

    epoch: int
    end_offset: int


class Machine:
    """Writers on one disk. All requests are one producer's, so that a repeat can be tried after any power cut."""

    def __init__(self, root: Path, *, recycle: bool) -> None:
        self.disk = CrashDisk(root, recycle=recycle)
        self.clock = SetClock()
        self.sent: dict[bytes, int] = {}
        #: Offsets below which retention was to remove everything; files end there.
        self.edges = {0}
        self._warehouses: list[Warehouse] = []

    def writer(self) -> PartitionLog:
        """Return the log of a further process on this machine, which creates or opens the partition."""
        store = DiskStore(self.disk)
        self._warehouses.append(Warehouse.open("", store=store, settings=SETTINGS, clock=self.clock))
        return self._warehouses[-1].create(REF)

    def append(self, log: PartitionLog, count: int = 1, *, flush: Flush = Flush.SYNC) -> None:
        """Append one request of `count` messages, and note its acknowledgement."""
        seq = len(self.sent)
        bodies = tuple(f"{seq}-{i}".encode() for i in range(count))
        self.sent |= dict.fromkeys(bodies, seq)
        result = log.append([batch(*bodies, producer=f"p-{seq}", seq=seq)], flush=flush)[0]
        self.disk.ack(Acked(seq, bodies, result.base_offset, result.durable))

    def remove(self, log: PartitionLog, below: int) -> None:
        """Remove everything below an offset at which a file ends, and note the answer."""
        self.edges.add(below)
        log.delete_below(below)
        assert log.min_offset == below
        self.disk.ack(Gone(below))

    def fence(self, log: PartitionLog, epoch: int) -> None:
        """Write a fence, and note where the log ended."""
        self.disk.ack(PutUp(epoch, log.fence("broker", epoch)))

    def close(self) -> None:
        for warehouse in self._warehouses:
            warehouse.close()


def appends(machine: Machine) -> None:
    log = machine.writer()
    for count in (1, 3, 2):
        machine.append(log, count)


def upkeep(machine: Machine, rounds: int = 7) -> None:
    """Appends with several roll-ups, checkpoints and clean-ups between them."""
    log = machine.writer()
    machine.append(log)
    machine.disk.forget_moments()
    for _ in range(rounds):
        machine.append(log)
        log.maintain()
        machine.clock.advance_ms(1_000)


def two_writers(machine: Machine) -> None:
    one, two = machine.writer(), machine.writer()
    for log in (one, two, one, two):
        machine.append(log)
        log.maintain()


def one_inside_the_other(machine: Machine) -> None:
    """A second writer makes a whole durable append while the first has linked its commit but not synced the folder."""
    one, two = machine.writer(), machine.writer()
    machine.append(one)
    state = {"armed": True}

    def between(name: str, path: str) -> None:
        if name == "sync_folder" and path.endswith("_delta_log") and state["armed"]:
            state["armed"] = False
            machine.append(two, 2)

    machine.disk.before = between
    machine.append(one, 2)
    machine.append(two)


def made_by_two(machine: Machine) -> None:
    """Two processes create the partition: the second acknowledges in folders that the first has not synced yet."""
    done: list[bool] = []

    def between(name: str, path: str) -> None:
        if name == "sync_folder" and not done and machine.disk.entries(f"{machine.disk.root}/topics"):
            done.append(True)
            machine.append(machine.writer())

    machine.disk.before = between
    machine.append(machine.writer())


def async_appends(machine: Machine) -> None:
    log = machine.writer()
    machine.append(log)
    machine.disk.forget_moments()
    machine.append(log, 2, flush=Flush.ASYNC)
    machine.append(log, flush=Flush.ASYNC)


def async_after_clean_up(machine: Machine) -> None:
    """Async appends into recycled files: those were commits and data before, and may be found with that content."""
    upkeep(machine, 3)
    log = machine.writer()
    machine.append(log)
    machine.disk.forget_moments()
    machine.append(log, flush=Flush.ASYNC)
    machine.append(log, 2, flush=Flush.ASYNC)


def async_then_durable(machine: Machine) -> None:
    """A durable append behind an async one is acknowledged only after both are durable."""
    log = machine.writer()
    machine.append(log, flush=Flush.ASYNC)
    machine.disk.forget_moments()
    machine.append(log)


def async_of_a_killed_writer(machine: Machine) -> None:
    """A durable append behind an async one of a process that was killed before its sync."""
    machine.append(machine.writer(), flush=Flush.ASYNC)
    successor = machine.writer()
    machine.disk.forget_moments()
    machine.append(successor)


def async_of_another_writer(machine: Machine) -> None:
    """An async append of another process in the middle of a durable append, which therefore loses its race."""
    one, two = machine.writer(), machine.writer()
    machine.append(one)
    machine.disk.forget_moments()
    state = {"armed": True}

    def between(name: str, path: str) -> None:
        if name == "link" and state["armed"]:
            state["armed"] = False
            machine.append(two, flush=Flush.ASYNC)

    machine.disk.before = between
    machine.append(one)


def async_and_upkeep(machine: Machine) -> None:
    """A roll-up and a checkpoint of appends that are not durable."""
    log = machine.writer()
    machine.append(log)
    machine.append(log)
    machine.disk.forget_moments()
    machine.append(log, flush=Flush.ASYNC)
    log.maintain()
    machine.append(log)
    log.maintain()


def async_then_checkpoint(machine: Machine) -> None:
    """A checkpoint of a state whose newest commit is not durable, with no roll-up before it."""
    log = machine.writer()
    machine.append(log)
    machine.append(log, 3)
    machine.disk.forget_moments()
    machine.append(log, flush=Flush.ASYNC)
    log.maintain()
    assert (log.checkpoint_version, len(log.files)) == (3, 3)


def retention(machine: Machine) -> None:
    """Retention of some and of all files, between appends, a roll-up, a checkpoint, and the deletion of files."""
    log = machine.writer()
    for count in (1, 2, 1):
        machine.append(log, count)
    machine.disk.forget_moments()
    machine.remove(log, 3)
    machine.append(log)
    log.maintain()
    assert log.checkpoint_version > 0
    machine.clock.advance_ms(1_000)
    log.maintain()
    machine.remove(log, log.end_offset)
    machine.append(log, 2)
    log.maintain()


def retention_by_another(machine: Machine) -> None:
    """Retention by one process in the middle of an append by another."""
    one, two = machine.writer(), machine.writer()
    machine.append(one)
    machine.append(one)
    machine.disk.forget_moments()
    state = {"armed": True}

    def between(call: str, path: str) -> None:
        if state["armed"] and call == "link":
            state["armed"] = False
            machine.remove(two, 1)

    machine.disk.before = between
    machine.append(one)
    machine.append(two)


def retention_of_async(machine: Machine) -> None:
    """Retention of appends that were not durable yet."""
    log = machine.writer()
    machine.append(log)
    machine.disk.forget_moments()
    for _ in range(2):
        machine.append(log, flush=Flush.ASYNC)
    machine.remove(log, 2)
    machine.append(log, flush=Flush.ASYNC)


def fences(machine: Machine) -> None:
    """Fences between appends, a roll-up and a checkpoint; the second by another process, in the middle of an append."""
    one, two = machine.writer(), machine.writer()
    machine.append(one)
    machine.disk.forget_moments()
    machine.fence(one, 1)
    machine.append(one, 2)
    one.maintain()
    state = {"armed": True}

    def between(call: str, path: str) -> None:
        if state["armed"] and call == "link":
            state["armed"] = False
            machine.fence(two, 2)

    machine.disk.before = between
    machine.append(one)
    one.maintain()
    machine.fence(one, 2)


def fence_behind_async(machine: Machine) -> None:
    """A fence behind async appends, of the same process or of another: they become durable before it."""
    one, two = machine.writer(), machine.writer()
    machine.append(one)
    machine.disk.forget_moments()
    machine.append(one, 2, flush=Flush.ASYNC)
    machine.fence(one, 1)
    machine.append(one, flush=Flush.ASYNC)
    machine.fence(two, 2)


def _fails(machine: Machine, call: str, part: str, count: int) -> Callable[[str, str], None]:
    left = [count]

    def fail(name: str, path: str) -> None:
        if name == call and part in path and left[0] > 0:
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return fail


def failing_folder_syncs(machine: Machine) -> None:
    """The commit's folder cannot be synced, once or for a while; requests are repeated until they are acknowledged."""
    log = machine.writer()
    machine.append(log)
    machine.disk.forget_moments()
    for count in (1, 2, 5):
        machine.disk.before = _fails(machine, "sync_folder", "_delta_log", count)
        seq = len(machine.sent)
        body = f"{seq}-0".encode()
        machine.sent[body] = seq
        for _ in range(10):
            try:
                result = log.append([batch(body, producer=f"p-{seq}", seq=seq)])[0]
            except DeltaMQError:
                continue
            machine.disk.ack(Acked(seq, (body,), result.base_offset, result.durable))
            break
        else:
            raise AssertionError("never acknowledged though the disk works again")


def failing_flushes(machine: Machine) -> None:
    """Async appends cannot be synced at first; then a durable append comes behind them."""
    log = machine.writer()
    machine.append(log, flush=Flush.ASYNC)
    machine.disk.forget_moments()
    for call, part in (("sync_file", ".parquet"), ("sync_file", ".json"), ("sync_folder", "_delta_log")):
        machine.disk.before = _fails(machine, call, part, 1)
        with pytest.raises(DeltaMQError):
            log.flush()
        machine.disk.before = lambda name, path: None
        machine.append(log)
        machine.append(log, flush=Flush.ASYNC)


DURABLE = [
    appends,
    upkeep,
    two_writers,
    one_inside_the_other,
    made_by_two,
    failing_folder_syncs,
    retention,
    retention_by_another,
    fences,
]
ASYNC = [
    async_appends,
    async_after_clean_up,
    async_then_durable,
    async_of_a_killed_writer,
    async_of_another_writer,
    async_and_upkeep,
    async_then_checkpoint,
    failing_flushes,
    retention_of_async,
    fence_behind_async,
]
