"""Power cuts: every state that a disk may be left in, at every system call of a log's life (fault F5).

The model of the disk is in `tests.faults.crash_disk`, the scenarios in `tests.faults.crash_scenarios`. Each runs the
real log on such a disk: make a partition, append (durably, not durably, by two writers in turn or one inside the
other), roll up, write a checkpoint, clean up, remove what is old, with fresh and with recycled files, with syncs that
fail. Then, for each state that a cut at any of its system calls may leave: open, read all, verify, append, open again.
Demanded of all of them, without exception:

- every batch that was acknowledged as durable is there, whole, at its offsets, unless retention was to remove it;
- a fence that was put up is there, with all that was acknowledged before it;
- what retention says it has removed does not come back;
- every row that is there was sent, and offsets are dense;
- a request that is repeated is not stored twice, and gets the offsets that it was told;
- nothing that is not durable is taken for durable, and the next append takes the next offset.

A cut in the middle of appends that were said to be not durable may leave a torn tail. Opening must then refuse, and
the cut that repair offers must lose nothing that was durable.

`make test` looks at all states of small scenarios and at a fixed sample of `SHORT` of most others; `make faults` at
all of all: some 30,000.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from deltamq.mq.errors import Corrupt, DeltaMQError
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.repairs import RepairKind, find_repair, repair
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.store.store import MemoryStore
from tests.faults.crash_disk import CrashDisk, Outcome, outcomes
from tests.faults.crash_scenarios import ASYNC, DURABLE, SETTINGS, Acked, Gone, Machine, PutUp, async_after_clean_up
from tests.rows import REF, all_bodies, batch

SHORT: Final = 20


class MendedFiles(MemoryStore):
    """The files that a cut left, and what was done to them since."""

    def digest(self) -> bytes:
        """Return the same for two states that differ at most in what a repair has set aside, which nobody reads."""
        digest = hashlib.blake2b()
        for path, content in sorted(self._files.items()):
            if "/_cut-" not in path:
                digest.update(b"%d %d " % (len(path), len(content)) + path.encode() + content)
        return digest.digest()


class Survivors:
    """The look at one state after a cut.

    Most torn states are the same state once they are cut. `looked` has those that were looked at further.
    """

    def __init__(self, machine: Machine, outcome: Outcome, looked: set[tuple[int, bytes]]) -> None:
        self._looked = looked
        self._told = outcome.acked
        self._sent = machine.sent
        self._clock = machine.clock
        told = machine.disk.acked[: outcome.acked]
        self._acked = [a for a in told if isinstance(a, Acked)]
        self._gone = max((a.below for a in told if isinstance(a, Gone)), default=0)
        self._fence = max((a for a in told if isinstance(a, PutUp)), key=lambda a: a.epoch, default=PutUp(0, 0))
        self._edges = machine.edges
        self._files = MendedFiles()
        self._closing = ExitStack()
        self.cut = False
        for path, content in outcome.image.items():
            self._files.put(path, content, durable=True)

    def check(self, *, may_be_torn: bool) -> None:
        with self._closing:
            log = self._opened(self._open(), may_be_torn=may_be_torn)
            if log is None:
                return
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

    def _opened(self, warehouse: Warehouse, *, may_be_torn: bool) -> PartitionLog | None:
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
        state = self._told, self._files.digest()
        if state in self._looked:
            return None
        self._looked.add(state)
        log = self._open().create(REF)
        log.verify()
        return log

    def _check_rows(self, log: PartitionLog) -> list[bytes]:
        bodies, low = all_bodies(log), log.min_offset
        assert low in self._edges and low >= self._gone
        assert len(bodies) == log.end_offset - low
        assert all(body in self._sent for body in bodies), "a phantom"
        assert len(set(bodies)) == len(bodies), "stored twice"
        assert log.fences.get("broker", 0) >= self._fence.epoch, "a fence is lost"
        for acked in self._acked:
            if (acked.durable or acked.base_offset < self._fence.end_offset) and acked.base_offset >= low:
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
    looked: set[tuple[int, bytes]] = set()
    for outcome in states:
        survivors = Survivors(machine, outcome, looked)
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


#: The disk of this one has so many states that to find them takes ten seconds of a core.
LARGE = (async_after_clean_up,)
SCENARIOS = pytest.mark.parametrize(
    "scenario",
    [pytest.param(one, marks=pytest.mark.long if one in LARGE else ()) for one in (*DURABLE, *ASYNC)],
    ids=lambda f: f.__name__,
)
#: The service recycles files; `make faults` also plays what other processes do, whose files are fresh.
FILES = pytest.mark.parametrize(
    "recycle", [pytest.param(False, marks=pytest.mark.long), True], ids=["fresh", "recycled"]
)


@pytest.mark.promise("FLUSH-1")
@FILES
@SCENARIOS
def test_f5_no_cut_loses_what_was_durable(tmp_path: Path, scenario: Callable[[Machine], None], recycle: bool) -> None:
    _play(tmp_path, scenario, recycle, _sample)


@pytest.mark.promise("FLUSH-4", "KEEP-8")
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
