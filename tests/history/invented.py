"""Random small histories: of a system that works, and of one with something changed at random (README.md)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from tests.history.checker.ops import (
    FOREVER,
    MS,
    Delivered,
    End,
    GroupRules,
    Handled,
    History,
    Outcome,
    Place,
    Poll,
    Pop,
    Read,
    Scan,
    Send,
    Settle,
)
from tests.history.planted import crc_of

__all__ = ["invent", "spoil"]

_PARTITIONS = ("orders@a", "orders#1@a")
_INVISIBLE = 60 * MS


@dataclass
class _World:
    """A log, a group that pops, and an exclusive group, that do what they should."""

    drawn: random.Random
    history: History = field(default_factory=History)
    now: int = MS
    log: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in _PARTITIONS})
    #: When each process's last operation ended: it does one thing at a time.
    free: dict[int, int] = field(default_factory=dict)
    position: dict[tuple[int, str], int] = field(default_factory=dict)
    #: Until when a message is leased, and its attempts.
    leased: dict[str, tuple[int, int]] = field(default_factory=dict)
    held: list[Delivered] = field(default_factory=list)
    acked: set[str] = field(default_factory=set)
    handled: dict[str, int] = field(default_factory=dict)
    busy_key: dict[str, int] = field(default_factory=dict)

    def around(self, process: int) -> tuple[int, int, int]:
        """The beginning, the moment of the effect, and the end of an operation; effects are in order."""
        self.now = max(self.now, self.free.get(process, 0)) + self.drawn.randint(1, 5) * MS
        begun = max(self.free.get(process, 0) + 1, self.now - self.drawn.randint(0, 8) * MS)
        ended = self.now + self.drawn.randint(0, 8) * MS
        self.free[process] = ended
        return begun, self.now, ended

    def send(self) -> None:
        # A key belongs to one process, so that its sends do not overlap.
        process = self.drawn.choice((1, 2))
        begun, _, ended = self.around(process)
        partition, id_ = self.drawn.choice(_PARTITIONS), f"m{len(self.history.sends)}"
        outcome = self.drawn.choices((Outcome.OK, Outcome.FAIL, Outcome.INFO), (8, 1, 1))[0]
        stored = outcome is Outcome.OK or (outcome is Outcome.INFO and self.drawn.random() < 0.5)
        place = Place(partition, len(self.log[partition]))
        if stored:
            self.log[partition].append(id_)
        made = Send(
            process=process, begun=begun, ended=ended, outcome=outcome, topic="orders", ids=(id_,),
            keys=(f"k{process}{partition}",), crcs=(crc_of(id_),), producer="p", partition=partition,
            placed=(place,) if outcome is Outcome.OK else (),
            number=len(self.history.sends),
        )  # fmt: skip
        self.history.add(made)

    def poll(self) -> None:
        process, partition = self.drawn.choice((3, 4)), self.drawn.choice(_PARTITIONS)
        begun, _, ended = self.around(process)
        first = self.position.get((process, partition), 0)
        ids = self.log[partition][first : first + self.drawn.randint(1, 4)]
        self.position[process, partition] = first + len(ids)
        found = tuple(Read(first + at, id_, crc_of(id_)) for at, id_ in enumerate(ids))
        self.history.add(Poll(process=process, begun=begun, ended=ended, partition=partition, reads=found))

    def end(self) -> None:
        partition = self.drawn.choice(_PARTITIONS)
        begun, _, ended = self.around(5)
        self.history.add(End(process=5, begun=begun, ended=ended, partition=partition, offset=len(self.log[partition])))

    def pop(self) -> None:
        process = self.drawn.choice((6, 7))
        begun, moment, ended = self.around(process)
        given: list[Delivered] = []
        for partition, ids in self.log.items():
            for offset, id_ in enumerate(ids):
                until, attempts = self.leased.get(id_, (0, 0))
                if id_ not in self.acked and until <= moment and len(given) < 3:
                    self.leased[id_] = (moment + _INVISIBLE, attempts + 1)
                    given.append(Delivered(id_, attempts + 1, f"{id_}/{attempts + 1}", partition, offset, None))
        self.held += given
        self.history.add(
            Pop(process=process, begun=begun, ended=ended, group="g", invisible=_INVISIBLE, deliveries=tuple(given))
        )

    def ack(self) -> None:
        if not self.held:
            return
        one = self.held.pop(self.drawn.randrange(len(self.held)))
        begun, moment, ended = self.around(self.drawn.choice((6, 7)))
        until, attempts = self.leased[one.id]
        said = "ok" if moment < until and attempts == one.attempt else "handle_expired"
        # Nobody acknowledges what it has not got yet.
        begun = max(begun, *(pop.ended for pop in self.history.pops if one in pop.deliveries)) + 1
        ended = max(ended, begun)
        if said == "ok":
            self.acked.add(one.id)
        self.history.add(
            Settle(
                process=6,
                begun=begun,
                ended=ended,
                kind="ack",
                group="g",
                receipts=(one.receipt,),
                results={one.receipt: said},
            )
        )

    def handle(self) -> None:
        """The next message of a partition, in the one client that has it."""
        partition = self.drawn.choice(_PARTITIONS)
        at = self.handled.get(partition, 0)
        if at >= len(self.log[partition]):
            return
        process = 8 + _PARTITIONS.index(partition)
        begun, _, ended = self.around(process)
        id_ = self.log[partition][at]
        success = self.drawn.random() < 0.8
        self.handled[partition] = at + success
        self.history.add(
            Handled(
                process=process,
                begun=begun,
                ended=ended,
                outcome=Outcome.OK if success else Outcome.FAIL,
                group="x",
                client=f"c{process}",
                partition=partition,
                offset=at,
                id=id_,
            )
        )


def invent(seed: int, steps: int) -> History:
    """A history in which nothing is wrong."""
    world = _World(random.Random(seed))
    world.history.add(
        GroupRules(group="g", topics=("orders",), max_attempts=1_000, durable=True),
        GroupRules(group="x", topics=("orders",), exclusive=True),
    )
    for _ in range(steps):
        world.drawn.choice((world.send, world.poll, world.end, world.pop, world.ack, world.handle))()
    for witness in ("api", "files"):
        for partition, ids in world.log.items():
            found = tuple(Read(at, id_, crc_of(id_)) for at, id_ in enumerate(ids))
            moment = world.now + 1_000 * MS
            world.history.add(
                Scan(process=99, begun=moment, ended=moment, witness=witness, partition=partition, reads=found)
            )
    return world.history.sort()


def spoil(history: History, seed: int) -> History:
    """Change a few operations at random: moments, offsets, what was read or given."""
    drawn = random.Random(seed)
    if drawn.random() < 0.2:
        _forget(history, drawn.choice(sorted({read.id for scan in history.scans for read in scan.reads}) or [""]))
    for _ in range(drawn.randint(1, 3)):
        ops = drawn.choice([found for found in history.lists() if found])
        at = drawn.randrange(len(ops))
        ops[at] = _shifted(ops, at, drawn) if drawn.random() < 1 / 3 else _changed(ops[at], drawn)
    return history.sort()


def _forget(history: History, id_: str) -> None:
    """A message that no reader has seen."""
    lists: list[list[Any]] = [history.polls, history.scans]
    for ops in lists:
        ops[:] = [replace(op, reads=tuple(read for read in op.reads if read.id != id_)) for op in ops]


def _shifted(ops: Sequence[Any], at: int, drawn: random.Random) -> Any:
    """At another moment, but between the others of its process: nobody does two things at a time."""
    op = ops[at]
    shift = drawn.randint(-100, 100) * MS
    others = [one for place, one in enumerate(ops) if place != at and one.process == op.process]
    room = op.begun - max((one.ended for one in others if one.ended <= op.begun), default=0)
    if shift < 0:
        shift = -min(-shift, max(room - 1, 0))
    else:
        room = min((one.begun for one in others if one.begun >= op.ended), default=FOREVER) - op.ended
        shift = min(shift, max(room - 1, 0))
    return replace(op, begun=op.begun + shift, ended=op.ended + shift)


def _changed(op: Any, drawn: random.Random) -> Any:
    kind = drawn.randrange(2)
    if isinstance(op, Send) and op.placed:
        place = op.placed[0]
        return replace(op, placed=(place._replace(offset=max(0, place.offset + drawn.randint(-3, 3))),))
    if isinstance(op, Poll | Scan) and op.reads:
        at = drawn.randrange(len(op.reads))
        if kind == 0:
            return replace(op, reads=op.reads[:at] + op.reads[at + 1 :])
        moved = op.reads[at]._replace(offset=max(0, op.reads[at].offset + drawn.randint(-2, 2)))
        return replace(op, reads=(*op.reads[:at], moved, *op.reads[at + 1 :]))
    if isinstance(op, End):
        return replace(op, offset=max(0, op.offset + drawn.randint(-3, 3)))
    if isinstance(op, Pop) and op.deliveries:
        return replace(op, invisible=op.invisible * drawn.randint(1, 5))
    if isinstance(op, Settle):
        return replace(op, results=dict.fromkeys(op.receipts, "ok"))
    if isinstance(op, Handled):
        return replace(op, ended=op.ended + drawn.randint(0, 50) * MS, partition=drawn.choice(_PARTITIONS))
    return op
