"""Power cuts: every state that a disk may be left in, at every system call of a log's life (RELIABILITY 5.3, F5).

The model of the disk is in `tests.faults.crash_disk`. Each scenario runs the real log on such a disk: make a
partition, append (durably, not durably, by two writers in turn or one inside the other), roll up, write a checkpoint,
clean up, remove what is old, with fresh and with recycled files, with syncs that fail. Then, for each state that a
cut at any of its system calls may leave: open, read all, verify, append, open again. Demanded of all of them, without
exception:

- every batch that was acknowledged as durable is there, whole, at its offsets, unless retention was to remove it;
- what retention says it has removed does not come back;
- every row that is there was sent, and offsets are dense;
- a request that is repeated is not stored twice, and gets the offsets that it was told;
- nothing that is not durable is taken for durable, and the next append takes the next offset.

A cut in the middle of appends that were said to be not durable may leave a torn tail. Opening must then refuse, and
the cut that repair offers must lose nothing that was durable.

`make test` looks at all states of most scenarios and at a fixed sample of `SHORT` of the large ones; `make faults` at
all of all: some 30,000.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from mq.errors import Corrupt, DeltaMQError
from tables.log import PartitionLog
from tables.repair import RepairKind, find_repair, repair
from tables.settings import Flush, LogSettings
from tables.store import MemoryStore
from tables.verify import Gravity, verify
from tables.warehouse import Warehouse
from tests.faults.crash_disk import CrashDisk, DiskStore, Outcome, outcomes
from tests.rows import REF, all_bodies, batch
from tests.set_clock import SetClock

SHORT: Final = 40
SETTINGS: Final = LogSettings(
    rollup_files=3,
    checkpoint_commits=4,
    log_keep_ms=1_000,
    file_keep_ms=1_000,
    orphan_keep_ms=10_000,
    flush_interval_ms=3_600_000,
)


@dataclass(frozen=True, slots=True)
class Acked:
    """What a producer was told: this request is at these offsets."""

    seq: int
    bodies: tuple[bytes, ...]
    base_offset: int
    durable: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """What retention was told: nothing below this offset is in the log any more."""

    below: int


class Machine:
    """Writers on one disk. Each request is one producer's next, so that a repeat can be tried after any cut."""

    def __init__(self, root: Path, *, recycle: bool) -> None:
        self.disk = CrashDisk(root, recycle=recycle)
        self.clock = SetClock()
        self.sent: dict[bytes, int] = {}
        #: Offsets below which everything was to be removed; files end there.
        self.edges = {0}
        self._warehouses: list[Warehouse] = []

    def writer(self) -> PartitionLog:
        """Another process on this machine, with the partition made or opened."""
        store = DiskStore(self.disk)
        self._warehouses.append(Warehouse.open("", store=store, settings=SETTINGS, clock=self.clock))
        return self._warehouses[-1].create(REF)

    def append(self, log: PartitionLog, count: int = 1, *, flush: Flush = Flush.SYNC) -> None:
        """Send one request of `count` messages, and note that it was acknowledged."""
        seq = len(self.sent)
        bodies = tuple(f"{seq}-{i}".encode() for i in range(count))
        self.sent |= dict.fromkeys(bodies, seq)
        result = log.append([batch(*bodies, producer=f"p-{seq}", seq=seq)], flush=flush)[0]
        self.disk.ack(Acked(seq, bodies, result.base_offset, result.durable))

    def remove(self, log: PartitionLog, below: int) -> None:
        """Let everything below an offset at which a file ends go, and note that it is gone."""
        self.edges.add(below)
        log.delete_below(below)
        assert log.min_offset == below
        self.disk.ack(Gone(below))

    def close(self) -> None:
        for warehouse in self._warehouses:
            warehouse.close()


def appends(machine: Machine) -> None:
    log = machine.writer()
    for count in (1, 3, 2):
        machine.append(log, count)


def upkeep(machine: Machine) -> None:
    """Appends with roll-ups, checkpoints and clean-up between; several of each."""
    log = machine.writer()
    machine.append(log)
    machine.disk.forget_moments()
    for _ in range(7):
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
    """Two processes make the partition: the second acknowledges in folders that the first has not synced yet."""
    done = []

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
    """The files that are not durable were commits and data before, and may be found as that."""
    upkeep(machine)
    log = machine.writer()
    machine.disk.forget_moments()
    machine.append(log, flush=Flush.ASYNC)
    machine.append(log, 2, flush=Flush.ASYNC)


def async_then_durable(machine: Machine) -> None:
    """What was not durable becomes so before anything behind it is said to be."""
    log = machine.writer()
    machine.append(log, flush=Flush.ASYNC)
    machine.disk.forget_moments()
    machine.append(log)


def async_of_a_killed_writer(machine: Machine) -> None:
    """The process that did not sync is gone; its successor acknowledges durably behind it."""
    machine.append(machine.writer(), flush=Flush.ASYNC)
    successor = machine.writer()
    machine.disk.forget_moments()
    machine.append(successor)


def async_of_another_writer(machine: Machine) -> None:
    """It arrives in the middle of a durable append of ours, which therefore loses its race."""
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
    """A roll-up and a checkpoint over appends that are not durable."""
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
    """Some and all files go, between appends, a roll-up, a checkpoint, and the deletion of what went."""
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
    """One process removes what another appends, in the middle of an append."""
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
    """What is removed was not durable yet."""
    log = machine.writer()
    machine.append(log)
    machine.disk.forget_moments()
    for _ in range(2):
        machine.append(log, flush=Flush.ASYNC)
    machine.remove(log, 2)
    machine.append(log, flush=Flush.ASYNC)


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
            raise AssertionError("never acknowledged though the disk is well again")


def failing_flushes(machine: Machine) -> None:
    """What was not durable cannot be synced at first; then a durable append comes behind it."""
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
]


class Survivors:
    """The look at one state after a cut."""

    def __init__(self, machine: Machine, outcome: Outcome) -> None:
        self._sent = machine.sent
        self._clock = machine.clock
        told = machine.disk.acked[: outcome.acked]
        self._acked = [a for a in told if isinstance(a, Acked)]
        self._gone = max((a.below for a in told if isinstance(a, Gone)), default=0)
        self._edges = machine.edges
        self._files = MemoryStore()
        self._closing = ExitStack()
        self.cut = False
        for path, content in outcome.image.items():
            self._files.put(path, content, durable=True)

    def check(self, *, may_be_torn: bool) -> None:
        with self._closing:
            log = self._opened(self._open(), may_be_torn=may_be_torn)
            bodies = self._check_rows(log)
            self._check_repeats(log, bodies)
            end, low = log.end_offset, log.min_offset
            assert log.append([batch(b"after the cut")])[0].base_offset == end
            log.verify()
        with self._closing:
            again = self._open()
            after = all_bodies(again.open_partition(REF))
            assert after[: len(bodies)] == bodies
            assert after[end - low] == b"after the cut"
            wrong = [f for f in verify(again) if f.gravity is Gravity.DAMAGE]
            assert wrong == [], wrong

    def _open(self) -> Warehouse:
        warehouse = Warehouse.open("", store=self._files, settings=SETTINGS, clock=self._clock)
        self._closing.callback(warehouse.close)
        return warehouse

    def _opened(self, warehouse: Warehouse, *, may_be_torn: bool) -> PartitionLog:
        try:
            log = warehouse.create(REF)
            log.verify()
            return log
        except Corrupt:
            if not may_be_torn:
                raise
        warehouse.close()
        self.cut = True
        mender = self._open()
        while (found := find_repair(mender, REF)) is not None:
            if found.kind is RepairKind.CUT:
                durable_end = max((a.base_offset + len(a.bodies) for a in self._acked if a.durable), default=0)
                assert found.lost_from is not None and found.lost_from >= durable_end, found.text
            repair(mender, found)
        mender.close()
        log = self._open().create(REF)
        log.verify()
        return log

    def _check_rows(self, log: PartitionLog) -> list[bytes]:
        bodies, low = all_bodies(log), log.min_offset
        assert low in self._edges and low >= self._gone
        assert len(bodies) == log.end_offset - low
        assert all(body in self._sent for body in bodies), "a phantom"
        assert len(set(bodies)) == len(bodies), "stored twice"
        for acked in self._acked:
            if acked.durable and acked.base_offset >= low:
                found = bodies[acked.base_offset - low : acked.base_offset - low + len(acked.bodies)]
                assert found == list(acked.bodies), f"{acked} is lost: there is {found}"
        return bodies

    def _check_repeats(self, log: PartitionLog, bodies: list[bytes]) -> None:
        """Every producer repeats its request: what is there is found, what was lost is stored behind it."""
        for acked in [a for a in self._acked if a.base_offset >= log.min_offset]:
            result = log.append([batch(*acked.bodies, producer=f"p-{acked.seq}", seq=acked.seq)])[0]
            if acked.bodies[0] in bodies:
                assert result.duplicate
                assert result.base_offset == log.min_offset + bodies.index(acked.bodies[0])
            else:
                assert not acked.durable
                assert not result.duplicate


def _check_all(machine: Machine, states: list[Outcome], *, may_be_torn: bool) -> int:
    """Look at each state; return how many had to be cut."""
    cuts = 0
    for outcome in states:
        survivors = Survivors(machine, outcome)
        try:
            survivors.check(may_be_torn=may_be_torn)
        except (AssertionError, DeltaMQError) as error:
            names = "\n  ".join(f"{path}: {len(content)} bytes" for path, content in sorted(outcome.image.items()))
            raise AssertionError(f"after a cut at {outcome.label!r}: {error!r}\n  {names}") from error
        cuts += survivors.cut
    assert len(states) > 10, "the scenario has no crash states to speak of"
    return cuts


def _sample(states: list[Outcome]) -> list[Outcome]:
    return random.Random(0).sample(states, SHORT) if len(states) > SHORT else states


def _play(
    tmp_path: Path, scenario: Callable[[Machine], None], recycle: bool, choose: Callable[[list[Outcome]], list[Outcome]]
) -> None:
    machine = Machine(tmp_path, recycle=recycle)
    scenario(machine)
    states = outcomes(machine.disk)
    chosen = choose(states)
    cuts = _check_all(machine, chosen, may_be_torn=scenario in ASYNC)
    machine.close()
    print(f"{scenario.__name__}: {len(chosen)} of {len(states)} states, {cuts} of them torn and cut")


SCENARIOS = pytest.mark.parametrize("scenario", [*DURABLE, *ASYNC], ids=lambda f: f.__name__)
FILES = pytest.mark.parametrize("recycle", [False, True], ids=["fresh", "recycled"])


@FILES
@SCENARIOS
def test_f5_no_cut_loses_what_was_durable(tmp_path: Path, scenario: Callable[[Machine], None], recycle: bool) -> None:
    _play(tmp_path, scenario, recycle, _sample)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@FILES
@SCENARIOS
def test_f5_no_cut_loses_what_was_durable_in_any_state(
    tmp_path: Path, scenario: Callable[[Machine], None], recycle: bool
) -> None:
    _play(tmp_path, scenario, recycle, lambda states: states)


# The test of the test: a disk that lies, and a log that does not sync, must turn it red.


class NoFileSync(CrashDisk):
    def sync_file(self, path: str) -> None:
        """Says yes and does nothing."""


class NoFolderSync(CrashDisk):
    def sync_folder(self, path: str) -> None:
        """Says yes and does nothing."""


@pytest.mark.parametrize("lying", [NoFileSync, NoFolderSync])
def test_the_model_finds_a_log_that_does_not_sync(tmp_path: Path, lying: type[CrashDisk]) -> None:
    machine = Machine(tmp_path, recycle=False)
    machine.disk = lying(tmp_path)
    log = machine.writer()
    machine.append(log)
    states = outcomes(machine.disk)
    with pytest.raises(AssertionError, match="after a cut"):
        _check_all(machine, states, may_be_torn=False)
    machine.close()
