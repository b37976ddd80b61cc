"""What clients did: operations with a beginning, an end, and what is certain of their outcome (README.md).

All times are nanoseconds of the one monotonic clock of the machine. An operation whose answer never came ends at
`FOREVER`: it may take effect at any later moment, or never.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

__all__ = [
    "FOREVER",
    "KINDS",
    "MS",
    "TUPLES",
    "Assign",
    "DeadLetters",
    "Delivered",
    "Drained",
    "End",
    "Fault",
    "GroupRules",
    "Handled",
    "History",
    "LostRight",
    "Op",
    "Outcome",
    "Place",
    "Poll",
    "Pop",
    "Read",
    "Scan",
    "Send",
    "Settle",
    "TopicRules",
]

FOREVER: Final = 1 << 62
#: Nanoseconds.
MS: Final = 1_000_000


class Outcome(enum.StrEnum):
    """What a client knows of its operation."""

    OK = "ok"  #: It took effect.
    FAIL = "fail"  #: It certainly did not: the service refused it as documented.
    INFO = "info"  #: Nobody knows.


class Place(NamedTuple):
    """Where a message is stored."""

    partition: str
    offset: int


class Read(NamedTuple):
    """A message as a reader got it; `crc` is of its body."""

    offset: int
    id: str
    crc: int


class Delivered(NamedTuple):
    """A message as a pop gave it away. Of a retried message, partition and offset are where it was then."""

    id: str
    attempt: int
    receipt: str
    partition: str
    offset: int
    key: str | None = None


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of one client process."""

    process: int
    begun: int
    ended: int
    outcome: Outcome = Outcome.OK

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK


class Send(Op, frozen=True, kw_only=True):
    """One logical produce request, whatever was repeated to get it through."""

    topic: str
    ids: tuple[str, ...]
    keys: tuple[str | None, ...]
    crcs: tuple[int, ...]
    #: The partition that the request named.
    partition: str | None = None
    #: None: without producer id and sequence, so that a repetition by the network is a second request.
    producer: str | None = None
    #: Where each message went, in the order of `ids`; empty unless `ok`, and for delayed messages.
    placed: tuple[Place, ...] = ()
    #: Delayed messages may not be seen before this moment.
    due: int | None = None
    #: The how-manieth of its producer its first message is, of one that keeps its messages in order in each partition,
    #: also when several sends are under way.
    number: int | None = None
    #: The epoch of the owner that stored it, where the answer names one.
    epoch: int | None = None


class Assign(Op, frozen=True, kw_only=True):
    """A reader begins at this offset; what it read before says nothing about what it reads next."""

    partition: str
    offset: int


class Poll(Op, frozen=True, kw_only=True):
    """One fetch of a reader that goes on where its last one ended."""

    partition: str
    reads: tuple[Read, ...] = ()


class End(Op, frozen=True, kw_only=True):
    """The end offset as the service said it, if it did."""

    partition: str
    offset: int = -1


class Scan(Op, frozen=True, kw_only=True):
    """A whole partition at the end of the run: `witness` is "api", or "files" for a reader without our code."""

    witness: str
    partition: str
    reads: tuple[Read, ...] = ()
    #: Why it could not be read as a whole.
    wrong: str | None = None
    #: Logical offsets that remappings left out: from the end of a segment to the beginning of the next one.
    jumps: tuple[tuple[int, int], ...] = ()


class Pop(Op, frozen=True, kw_only=True):
    """Messages that a group was given for `invisible` nanoseconds."""

    group: str
    invisible: int
    deliveries: tuple[Delivered, ...] = ()


class Settle(Op, frozen=True, kw_only=True):
    """What a client did with receipts: `kind` is "ack", "nack", "extend" or "dead".

    `results` has "ok" or a code for each receipt when the answer came; `renewed` is the receipt after an extension.
    """

    kind: str
    group: str
    receipts: tuple[str, ...]
    results: Mapping[str, str] = msgspec.field(default_factory=dict)
    renewed: str | None = None
    invisible: int = 0


class DeadLetters(Op, frozen=True, kw_only=True):
    """A group's dead letters at the end: id, attempts, reason."""

    group: str
    letters: tuple[tuple[str, int, str], ...] = ()


class Drained(Op, frozen=True, kw_only=True):
    """The group was consumed until nothing came for long enough; not `ok` when that did not end in its time."""

    group: str


class Handled(Op, frozen=True, kw_only=True):
    """The listener of an exclusive client had a message; `ok` when it returned success, and that counted."""

    group: str
    client: str
    partition: str
    offset: int
    id: str


class LostRight(Op, frozen=True, kw_only=True):
    """An exclusive client says that its right to a partition ended under it: what it did not commit is done again."""

    group: str
    client: str
    partition: str


class Fault(Op, frozen=True, kw_only=True):
    """What the nemesis did: `kind` to `target`, from `begun` until it was healed at `ended`."""

    kind: str
    target: str


#: How histories on disk name them.
KINDS: Final[dict[str, type[Op]]] = {
    "send": Send,
    "assign": Assign,
    "poll": Poll,
    "end": End,
    "scan": Scan,
    "pop": Pop,
    "settle": Settle,
    "dead": DeadLetters,
    "drained": Drained,
    "handled": Handled,
    "lost": LostRight,
    "fault": Fault,
}
#: What their fields of these names are lists of.
TUPLES: Final[dict[str, Callable[..., Any]]] = {"placed": Place, "reads": Read, "deliveries": Delivered}


class GroupRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a group promises in this run."""

    group: str
    topics: tuple[str, ...]
    max_attempts: int = 16
    #: "" (none), "partition" or "key".
    order: str = ""
    exclusive: bool = False
    #: Leases and acknowledgements are stored before they are answered: a crash of a service forgets none. Those of
    #: groups in order always are.
    durable: bool = False


class TopicRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic promises in this run."""

    topic: str
    strict: bool = False


class History(msgspec.Struct):
    """Everything that was recorded, each kind in order of `begun`."""

    sends: list[Send] = msgspec.field(default_factory=list)
    assigns: list[Assign] = msgspec.field(default_factory=list)
    polls: list[Poll] = msgspec.field(default_factory=list)
    ends: list[End] = msgspec.field(default_factory=list)
    scans: list[Scan] = msgspec.field(default_factory=list)
    pops: list[Pop] = msgspec.field(default_factory=list)
    settles: list[Settle] = msgspec.field(default_factory=list)
    dead: list[DeadLetters] = msgspec.field(default_factory=list)
    drained: list[Drained] = msgspec.field(default_factory=list)
    handled: list[Handled] = msgspec.field(default_factory=list)
    lost: list[LostRight] = msgspec.field(default_factory=list)
    faults: list[Fault] = msgspec.field(default_factory=list)
    groups: dict[str, GroupRules] = msgspec.field(default_factory=dict)
    topics: dict[str, TopicRules] = msgspec.field(default_factory=dict)
    #: How much later than its true end a lease or a delay may be taken for over, in nanoseconds.
    slack: int = 5 * MS

    def add(self, *ops: Op | GroupRules | TopicRules) -> History:
        """Put operations where they belong."""
        for op in ops:
            if isinstance(op, GroupRules):
                self.groups[op.group] = op
            elif isinstance(op, TopicRules):
                self.topics[op.topic] = op
            else:
                self._list_of(op).append(op)
        return self

    def sort(self) -> History:
        """Each kind in order of its beginning."""
        for ops in self.lists():
            ops.sort(key=lambda op: (op.begun, op.ended))
        return self

    def lists(self) -> list[list[Any]]:
        """All operations, by kind."""
        return [getattr(self, name) for name in _KINDS.values()]

    def _list_of(self, op: Op) -> list[Any]:
        ops: list[Any] = getattr(self, _KINDS[type(op)])
        return ops


_KINDS: Final[dict[type, str]] = {
    Send: "sends",
    Assign: "assigns",
    Poll: "polls",
    End: "ends",
    Scan: "scans",
    Pop: "pops",
    Settle: "settles",
    DeadLetters: "dead",
    Drained: "drained",
    Handled: "handled",
    LostRight: "lost",
    Fault: "faults",
}
