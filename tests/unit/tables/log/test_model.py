"""The log against a plain list, in any order of what processes may do to it.

Two writers and any number of reopenings share one set of files. The model is a list of bodies: position is offset.
After every step each process that looks sees a prefix of the model at least as long as what it saw before, and all of
it after a refresh.
"""

from __future__ import annotations

import contextlib
from contextlib import closing
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deltamq.mq.errors import Fenced, OffsetMismatch, Unknown
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush, LogSettings
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF, all_bodies, batch
from tests.set_clock import SetClock

SETTINGS: Final = LogSettings(
    rollup_files=3,
    checkpoint_commits=5,
    log_keep_ms=1_000,
    file_keep_ms=1_500,
    orphan_keep_ms=20_000,
    row_group_rows=4,
    tail_bytes_max=64 * 1024,
    flush_interval_ms=3_600_000,
)
WHO: Final = st.integers(0, 1)


class Crash(Exception):
    """The process is killed at this call."""


class LogMachine(RuleBasedStateMachine):
    """Rules are what processes do; `self.model` is what must come of it."""

    @initialize()
    def start(self) -> None:
        self.files = MemoryStore()
        self.clock = SetClock()
        self.model: list[bytes] = []
        self.first = 0
        self.requests: dict[int, tuple[int, int]] = {}
        self.pending: dict[int, tuple[bytes, ...]] = {}
        self.next_seq = 0
        self.stores = [FaultyStore(self.files), FaultyStore(self.files)]
        self.warehouses: list[Warehouse] = []
        self.logs = [self._open(0), self._open(1)]
        self.seen = [0, 0]
        #: The fence that is certainly there, and the one that may be.
        self.epoch = self.epoch_maybe = 0

    def _open(self, who: int) -> PartitionLog:
        self.stores[who] = FaultyStore(self.files)
        self.warehouses.append(Warehouse.open("", store=self.stores[who], settings=SETTINGS, clock=self.clock))
        return self.warehouses[-1].create(REF)

    def teardown(self) -> None:
        for warehouse in getattr(self, "warehouses", []):
            warehouse.close()

    def _bodies(self, count: int) -> tuple[bytes, ...]:
        return tuple(f"{self.next_seq}-{i}".encode() for i in range(count))

    def _stored(self, seq: int, base: int, bodies: tuple[bytes, ...]) -> None:
        """An append says that this request is at `base`: it was there, or it is new and goes to the end."""
        if seq in self.requests:
            assert self.requests[seq] == (base, len(bodies))
            return
        # A request without an answer may have been stored before this one.
        assert base >= len(self.model)
        self._learn(base)
        assert base == len(self.model)
        self.model += bodies
        self.requests[seq] = (base, len(bodies))

    def _learn(self, end: int) -> None:
        """Requests whose outcome was unknown turn out to be stored when something lies behind them."""
        while len(self.model) < end:
            with closing(Warehouse.open("", store=self.files, clock=self.clock)) as warehouse:
                witness = all_bodies(warehouse.open_partition(REF))
            found = witness[len(self.model) - self.first]
            seq = int(found.split(b"-")[0])
            bodies = self.pending[seq]
            self.requests[seq] = (len(self.model), len(bodies))
            self.model += bodies

    @rule(who=WHO, count=st.integers(1, 5), flush=st.sampled_from(Flush))
    def append(self, who: int, count: int, flush: Flush) -> None:
        bodies = self._bodies(count)
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self._send(who, seq, bodies, flush)

    def _send(self, who: int, seq: int, bodies: tuple[bytes, ...], flush: Flush) -> None:
        self.pending[seq] = bodies
        try:
            result = self.logs[who].append([batch(*bodies, producer=f"p{seq}", seq=seq)], flush=flush)[0]
        except Unknown:
            return  # the pause was too long to tell; it may be repeated
        assert result.count == len(bodies)
        self._stored(seq, result.base_offset, bodies)

    @rule(who=WHO, sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4))
    def append_many(self, who: int, sizes: list[int]) -> None:
        first = self.next_seq
        requests = []
        for count in sizes:
            requests.append(self._bodies(count))
            self.pending[self.next_seq] = requests[-1]
            self.next_seq += 1
        batches = [batch(*bodies, producer=f"p{first + i}", seq=first + i) for i, bodies in enumerate(requests)]
        try:
            results = self.logs[who].append([*batches, batches[0]])
        except Unknown:
            return
        for i, (result, bodies) in enumerate(zip(results, requests, strict=False)):
            self._stored(first + i, result.base_offset, bodies)
        assert results[-1].duplicate and results[-1].base_offset == results[0].base_offset

    @precondition(lambda self: self.pending)
    @rule(who=WHO, data=st.data(), flush=st.sampled_from(Flush))
    def repeat(self, who: int, data: st.DataObject, flush: Flush) -> None:
        seq = data.draw(st.sampled_from(sorted(self.pending)))
        if seq in self.requests and self.requests[seq][0] < self.first:
            return  # retention removed it, and its memory with it
        self._send(who, seq, self.pending[seq], flush)

    @rule(who=WHO, off_by=st.integers(-1, 1))
    def append_expecting(self, who: int, off_by: int) -> None:
        self.logs[who].refresh()
        end = self.logs[who].end_offset
        self._learn(end)
        bodies = self._bodies(1)
        try:
            result = self.logs[who].append(
                [batch(*bodies, producer=f"p{self.next_seq}", seq=self.next_seq)], expected_offset=end + off_by
            )[0]
        except OffsetMismatch:
            assert off_by != 0
            return
        except Unknown:
            self.pending[self.next_seq] = bodies
            self.next_seq += 1
            return
        assert off_by == 0
        self.pending[self.next_seq] = bodies
        self._stored(self.next_seq, result.base_offset, bodies)
        self.next_seq += 1

    @rule(who=WHO)
    def fence(self, who: int) -> None:
        """From now on nobody appends who names an older epoch."""
        self.epoch_maybe = self.epoch + 1
        try:
            end = self.logs[who].fence("broker", self.epoch_maybe)
        except Unknown:
            return
        self.epoch = self.epoch_maybe
        self._learn(end)
        assert end == len(self.model)

    @rule(who=WHO, behind=st.integers(0, 1))
    def append_knowing(self, who: int, behind: int) -> None:
        """A writer that knows the newest fence, or the one before."""
        bodies = self._bodies(1)
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self.pending[seq] = bodies
        known = {"broker": self.epoch - behind}
        try:
            result = self.logs[who].append([batch(*bodies, producer=f"p{seq}", seq=seq)], fence_epochs=known)[0]
        except Fenced:
            assert known["broker"] < self.epoch_maybe
            return
        except Unknown:
            return
        assert known["broker"] >= self.epoch or self.epoch == 0
        self._stored(seq, result.base_offset, bodies)

    @rule(who=WHO, other=st.integers(1, 3), call=st.sampled_from(["put", "put_if_absent"]))
    def append_against_a_rival(self, who: int, other: int, call: str) -> None:
        """The other writer appends in the middle of this one's append."""

        def rival(_: str) -> None:
            for _ in range(other):
                self.append(1 - who, 1, Flush.SYNC)

        self.stores[who].once("before", call, rival, key="/orders@")
        self.append(who, 2, Flush.SYNC)
        self.stores[who].before.clear()

    @rule(who=WHO, ms=st.sampled_from([100, 600, 3_000, 10_000]), call=st.sampled_from(["put", "put_if_absent"]))
    def append_with_a_pause(self, who: int, ms: int, call: str) -> None:
        """It sleeps in the middle, and the other one works and cleans up meanwhile."""

        def pause(_: str) -> None:
            for _ in range(4):
                self.clock.advance_ms(ms // 4)
                self.append(1 - who, 1, Flush.SYNC)
                self.maintain(1 - who)

        self.stores[who].once("before", call, pause, key="/orders@")
        self.append(who, 1, Flush.SYNC)
        self.stores[who].before.clear()

    @rule(who=WHO, call=st.sampled_from(["put", "put_if_absent", "replace", "delete", "read"]), when=st.booleans())
    def crash(self, who: int, call: str, when: bool) -> None:
        """The process dies at a call of its next append or upkeep, before or after it takes effect; another starts."""

        def die(_: str) -> None:
            raise Crash

        self.stores[who].once("before" if when else "after", call, die)
        bodies = self._bodies(2)
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self.pending[seq] = bodies
        try:
            result = self.logs[who].append([batch(*bodies, producer=f"p{seq}", seq=seq)])[0]
            self._stored(seq, result.base_offset, bodies)
            self.logs[who].maintain()
        except (Crash, Unknown):
            pass
        self.logs[who] = self._open(who)
        self._learn(self.logs[who].end_offset)

    @rule(who=WHO)
    def maintain(self, who: int) -> None:
        with contextlib.suppress(Unknown):
            self.logs[who].maintain()

    @rule(ms=st.sampled_from([50, 400, 1_100, 5_000, 21_000]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance_ms(ms)

    @rule(who=WHO)
    def reopen(self, who: int) -> None:
        self.logs[who] = self._open(who)
        self.seen[who] = self.logs[who].end_offset

    @rule(who=WHO, data=st.data())
    def retain(self, who: int, data: st.DataObject) -> None:
        """Retention removes whole files: one that reaches beyond the offset stays."""
        files = self._all_learnt(who)
        edges = [self.first, *(file.end for file in files)]
        offset = data.draw(st.sampled_from(edges) | st.integers(0, len(self.model) + 2))
        gone = [file for file in files if file.end <= offset]
        try:
            removed = self.logs[who].delete_below(offset)
        except Unknown:
            self._retained({self.first, *(file.end for file in gone[-1:])})
        else:
            assert (removed.files, removed.messages) == (len(gone), sum(file.count for file in gone))
            self._retained({gone[-1].end if gone else self.first})

    def _all_learnt(self, who: int) -> list[DataFile]:
        """The live files, when the model knows all that is in them."""
        log = self.logs[who]
        log.refresh()
        self._learn(log.end_offset)
        return list(log.files)

    def _retained(self, allowed: set[int]) -> None:
        """A process that opens the files now finds the minimum offset at one of these."""
        with closing(Warehouse.open("", store=self.files, clock=self.clock)) as warehouse:
            self.first = warehouse.open_partition(REF).min_offset
        assert self.first in allowed

    @rule(who=WHO, rival=st.sampled_from(["append", "maintain", "delete_below"]), data=st.data())
    def retain_against_a_rival(self, who: int, rival: str, data: st.DataObject) -> None:
        """The other process appends, rolls up or removes in the middle of this one's removal."""
        files = self._all_learnt(who)
        offset = data.draw(st.sampled_from([self.first, *(file.end for file in files)]))

        def meanwhile(_: str) -> None:
            if rival == "append":
                self.append(1 - who, 1, Flush.SYNC)
            elif rival == "maintain":
                self.maintain(1 - who)
            else:
                with contextlib.suppress(Unknown):
                    self.logs[1 - who].delete_below(offset)

        self.stores[who].once("before", "put_if_absent", meanwhile, key="/orders@")
        with contextlib.suppress(Unknown):
            self.logs[who].delete_below(offset)
        self.stores[who].before.clear()
        # A roll-up may have joined files across the offset: then they stay.
        self._retained({self.first, *(file.end for file in files if file.end <= offset)})

    @rule(who=WHO, call=st.sampled_from(["put_if_absent", "delete"]), before=st.booleans())
    def crash_while_retaining(self, who: int, call: str, before: bool) -> None:
        """A kill leaves all of it or nothing of it."""

        def die(_: str) -> None:
            raise Crash

        files = self._all_learnt(who)
        self.stores[who].once("before" if before else "after", call, die)
        with contextlib.suppress(Crash, Unknown):
            self.logs[who].delete_below(files[0].end if files else 0)
            self.logs[who].maintain()
        self.logs[who] = self._open(who)
        self._retained({self.first, *(file.end for file in files[:1])})

    @rule(who=WHO, data=st.data(), count=st.integers(1, 7), size=st.sampled_from([1, 200, 100_000]))
    def read(self, who: int, data: st.DataObject, count: int, size: int) -> None:
        log = self.logs[who]
        log.refresh()
        self._learn(log.end_offset)
        assert (log.min_offset, log.end_offset) == (self.first, len(self.model))
        at = data.draw(st.integers(0, len(self.model) + 1))
        answer = log.read(at, max_messages=count, max_bytes=size)
        if at > len(self.model):
            assert answer.status is FetchStatus.OFFSET_TOO_LARGE
        elif at == len(self.model):
            assert answer.status is FetchStatus.NO_NEW_MESSAGE
        elif at < self.first:
            assert answer.status is FetchStatus.OFFSET_TOO_SMALL and answer.next_offset == self.first
        else:
            found = answer.rows.column("body").to_pylist()
            assert 1 <= len(found) <= count
            assert found == self.model[at : at + len(found)]
            assert answer.next_offset == at + len(found)

    @invariant()
    def ends_never_go_back_nor_beyond(self) -> None:
        if not hasattr(self, "logs"):
            return
        for who, log in enumerate(self.logs):
            assert log.end_offset >= self.seen[who]
            self.seen[who] = log.end_offset

    @rule()
    def everybody_sees_everything(self) -> None:
        for log in self.logs:
            log.refresh()
            self._learn(log.end_offset)
        for log in self.logs:
            assert all_bodies(log, step=3) == self.model[self.first :]
            assert log.fences.get("broker", 0) in (self.epoch, self.epoch_maybe)
            log.verify()


def run_log_machine(examples: int) -> None:
    """Play so many games of thirty steps."""
    chosen = settings(max_examples=examples, stateful_step_count=30)
    run_state_machine_as_test(LogMachine, settings=chosen)


def test_model_3_the_log_is_a_list_whatever_processes_do() -> None:
    run_log_machine(10)
