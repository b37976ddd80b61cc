"""Histories with one known fault each, for every rule; and what they are without it (README.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from tests.history.checker.ops import (
    FOREVER,
    MS,
    Assign,
    DeadLetters,
    Delivered,
    Drained,
    End,
    Fault,
    GroupRules,
    Handled,
    History,
    LostRight,
    Outcome,
    Place,
    Poll,
    Pop,
    Read,
    Scan,
    Send,
    Settle,
    TopicRules,
)

__all__ = ["PLANTED", "crc_of", "send"]

P: Final = "orders@a"
_SECOND: Final = 1_000 * MS


def crc_of(id_: str) -> int:
    """The bytes of a message, for the purposes of these histories."""
    return sum(id_.encode())


def send(at: int, id_: str, offset: int | None, *, outcome: Outcome = Outcome.OK, **other: Any) -> Send:
    """One message, sent within a millisecond, that lies at an offset."""
    known: dict[str, Any] = {
        "process": 1,
        "begun": at * MS,
        "ended": at * MS + MS,
        "topic": "orders",
        "keys": ("k",),
        "producer": "p",
        "partition": P,
        **other,
    }
    placed = (Place(P, offset),) if offset is not None else ()
    return Send(ids=(id_,), crcs=(crc_of(id_),), placed=placed, outcome=outcome, **known)


def batch(at: int, ids: str, offsets: tuple[int, ...], **other: Any) -> Send:
    """Several messages of one letter each in one request."""
    placed = tuple(Place(P, offset) for offset in offsets)
    return Send(
        process=1,
        begun=at * MS,
        ended=at * MS + MS,
        topic="orders",
        ids=tuple(ids),
        keys=tuple("k" for _ in ids),
        crcs=tuple(map(crc_of, ids)),
        partition=P,
        producer="p",
        placed=placed,
        **other,
    )


def reads(ids: str, first: int = 0) -> tuple[Read, ...]:
    """Messages of one letter each that lie one after another; a space is a place that nobody saw."""
    return tuple(Read(first + i, id_, crc_of(id_)) for i, id_ in enumerate(ids) if id_ != " ")


def poll(at: int, found: tuple[Read, ...], process: int = 2) -> Poll:
    return Poll(process=process, begun=at * MS, ended=at * MS + MS, partition=P, reads=found)


def scan(found: tuple[Read, ...], witness: str = "files") -> Scan:
    return Scan(process=9, begun=9 * _SECOND, ended=9 * _SECOND + MS, witness=witness, partition=P, reads=found)


def end(at: int, offset: int) -> End:
    return End(process=5, begun=at * MS, ended=at * MS + MS, partition=P, offset=offset)


def three(**other: Any) -> History:
    """Three messages that were sent one after another and read."""
    return History().add(*(send(10 * i, id_, i, **other) for i, id_ in enumerate("abc")), scan(reads("abc")))


GROUP: Final = GroupRules(group="g", topics=("orders",), max_attempts=3, durable=True)


def pop(at: int, id_: str, attempt: int = 1, *, process: int = 3, invisible_ms: int = 100, **other: object) -> Pop:
    """One message is given away, with a receipt that names it and the attempt."""
    offset = ord(id_) - ord("a")
    one = Delivered(id_, attempt, f"{id_}{attempt}", str(other.get("partition", P)), offset, "k")
    return Pop(
        process=process, begun=at * MS, ended=at * MS + MS, group="g", invisible=invisible_ms * MS, deliveries=(one,)
    )


def settle(at: int, receipt: str, kind: str = "ack", said: str = "ok", **other: Any) -> Settle:
    return Settle(
        process=3,
        begun=at * MS,
        ended=at * MS + MS,
        kind=kind,
        group="g",
        receipts=(receipt,),
        results={receipt: said},
        **other,
    )


def letters(*found: tuple[str, int, str]) -> DeadLetters:
    return DeadLetters(process=9, begun=9 * _SECOND, ended=9 * _SECOND, group="g", letters=found)


def queue(*ops: Any, rules: GroupRules = GROUP) -> History:
    """Three messages, their acknowledgements but for those of `a`, an end, and what the case is about."""
    drained = Drained(process=9, begun=8 * _SECOND, ended=9 * _SECOND, group="g")
    done = [pop(50, "b", process=8), settle(52, "b1"), pop(50, "c", process=8), settle(52, "c1")]
    return three().add(rules, drained, *done, *ops)


def ordered(*ops: Any) -> History:
    """A group in which messages of a key follow each other: a is given at once, the rest is the case's."""
    rules = GroupRules(group="g", topics=("orders",), order="key")
    return three().add(rules, pop(50, "a"), *ops)


EXCLUSIVE: Final = GroupRules(group="g", topics=("orders",), exclusive=True)


def handled(at: int, until: int, id_: str, client: str = "c1", outcome: Outcome = Outcome.OK) -> Handled:
    return Handled(
        process=4,
        begun=at * MS,
        ended=until * MS if until >= 0 else FOREVER,
        outcome=outcome,
        group="g",
        client=client,
        partition=P,
        offset=ord(id_) - ord("a"),
        id=id_,
    )


def orderly(*ops: Any) -> History:
    """An exclusive group that handled a, and what the case is about."""
    return three().add(EXCLUSIVE, TopicRules(topic="orders", strict=True), handled(50, 51, "a"), *ops)


def fault(at: int, kind: str = "kill", target: str = "service", ms: int = 1) -> Fault:
    return Fault(process=0, begun=at * MS, ended=(at + ms) * MS, kind=kind, target=target)


#: The anomalies that must be found, and no others, by a sentence about the history.
PLANTED: Final[dict[str, tuple[set[str], Callable[[], History]]]] = {
    # Without a fault.
    "three messages": (set(), three),
    "a refused send that nobody read": (set(), lambda: three().add(send(90, "x", None, outcome=Outcome.FAIL))),
    "an unknown send that was stored": (
        set(),
        lambda: History().add(send(0, "a", None, outcome=Outcome.INFO), scan(reads("a"))),
    ),
    "an unknown send of nobody that the network repeated": (
        set(),
        lambda: History().add(send(0, "a", None, outcome=Outcome.INFO, producer=None), scan(reads("aa"))),
    ),
    "sends that overlap may lie in any order": (
        set(),
        lambda: History().add(send(0, "a", 1, ended=9 * MS), send(5, "b", 0, process=2), scan(reads("ba"))),
    ),
    "a producer's pipelined messages that a takeover delays": (
        set(),
        lambda: History().add(
            *(send(0, id_, at, ended=90 * MS, number=at) for at, id_ in enumerate("abcd")),
            fault(50),
            scan(reads("abcd")),
        ),
    ),
    "a reader that begins anew": (
        set(),
        lambda: three().add(
            poll(60, reads("abc")),
            Assign(process=2, begun=70 * MS, ended=70 * MS, partition=P, offset=0),
            poll(80, reads("a")),
        ),
    ),
    "a message given again when its time was over": (
        set(),
        lambda: queue(pop(60, "a"), pop(170, "a", 2, process=4), settle(180, "a2")),
    ),
    "a message given back and given again": (
        set(),
        lambda: queue(pop(60, "a"), settle(65, "a1", "nack"), pop(70, "a", 2, process=4), settle(80, "a2")),
    ),
    "in order, a service is killed after it stored a pop, and before it answered": (
        set(),
        lambda: ordered(fault(54), settle(152, "a1", said="handle_expired"), pop(260, "a", 3), settle(262, "a3")),
    ),
    "in order, a clock ends a lease": (
        set(),
        lambda: ordered(fault(54, "clock"), pop(60, "a", 2, process=4), settle(70, "a2")),
    ),
    "a service forgets its memory": (
        set(),
        lambda: queue(
            pop(60, "a"),
            settle(62, "a1"),
            fault(64),
            pop(66, "a", process=4),
            rules=GroupRules(group="g", topics=("orders",), max_attempts=3),
        ),
    ),
    "an acknowledgement that was sent in time, called expired, and counted": (
        set(),
        lambda: queue(pop(60, "a"), settle(159, "a1", said="handle_expired")),
    ),
    "a message that dies": (
        set(),
        lambda: queue(pop(60, "a"), pop(170, "a", 2), pop(280, "a", 3), letters(("a", 3, "max_attempts"))),
    ),
    "a condemned message": (
        set(),
        lambda: queue(pop(60, "a"), settle(70, "a1", "dead"), letters(("a", 1, "poison"))),
    ),
    "messages of a key one after another": (
        set(),
        lambda: ordered(settle(52, "a1"), pop(54, "b"), settle(56, "b1"), pop(58, "c")),
    ),
    "a request that met an expansion": (
        set(),
        lambda: History().add(
            batch(5, "ab", (0, 2)),
            fault(0, "expand", "1-2"),
            send(20, "x", 1, begun=5 * MS, process=2),
            scan(reads("axb")),
        ),
    ),
    "an orderly client": (set(), lambda: orderly(handled(52, 53, "b"), handled(54, 55, "c"))),
    "a killed client's message goes to another": (
        set(),
        lambda: orderly(handled(52, -1, "b", outcome=Outcome.INFO), fault(53, target="c1"), handled(90, 91, "b", "c2")),
    ),
    "a client that lost its right": (
        set(),
        lambda: orderly(
            handled(52, 53, "b"),
            LostRight(process=4, begun=60 * MS, ended=60 * MS, group="g", client="c1", partition=P),
            handled(90, 91, "b", "c2"),
        ),
    ),
    # Of the log.
    "an acknowledged message is missing between others": (
        {"lost-write", "hole"},
        lambda: History().add(*three().sends, scan(reads("a c"))),
    ),
    "the newest acknowledged message is missing": (
        {"unseen"},
        lambda: History().add(*three().sends, scan(reads("ab"))),
    ),
    "a delayed message never came": ({"unseen"}, lambda: three().add(send(40, "x", None, due=50 * MS))),
    "one message at two offsets": ({"duplicate"}, lambda: three().add(scan(reads("abca")))),
    "two messages at one offset": (
        {"inconsistent-offset"},
        lambda: three().add(send(40, "x", None, outcome=Outcome.INFO), poll(60, reads("x", 2))),
    ),
    "an offset that does not exist": (
        {"hole"},
        lambda: History().add(send(0, "a", 0), send(5, "b", 2), scan(reads("a b"))),
    ),
    "offsets that a remapping left out": (
        set(),
        lambda: History().add(send(0, "a", 0), send(5, "b", 2), replace(scan(reads("a b")), jumps=((1, 2),))),
    ),
    "offsets that two remappings in a row left out": (
        set(),
        lambda: History().add(send(0, "a", 0), send(5, "b", 4), replace(scan(reads("a   b")), jumps=((1, 3), (3, 4)))),
    ),
    "a segment that was sealed short": (
        {"lost-write", "hole"},
        lambda: History().add(
            *(send(10 * at, id_, offset) for at, (id_, offset) in enumerate((("a", 0), ("b", 1), ("c", 4)))),
            replace(scan(reads("a   c")), jumps=((2, 4),)),
        ),
    ),
    "a message of an undecided segment that was said to lie at 0": (
        {"inconsistent-offset", "duplicate"},
        lambda: History().add(
            send(0, "a", 0), send(0, "x", 0, process=2), replace(scan(reads("a    x")), jumps=((1, 5),))
        ),
    ),
    "two writable leaders": (
        {"lost-write", "inconsistent-offset"},
        lambda: History().add(send(0, "a", 0), send(5, "b", 1), send(5, "c", 1, process=2), scan(reads("ac"))),
    ),
    "the copy of the older segments was lost": (
        {"unseen"},
        lambda: History().add(send(0, "a", 0), send(5, "b", 1), scan(())),
    ),
    "a message that nobody sent": ({"phantom"}, lambda: three().add(scan(reads("abcx")))),
    "a refused message that is there": (
        {"aborted-read"},
        lambda: three().add(send(40, "x", None, outcome=Outcome.FAIL), scan(reads("abcx"))),
    ),
    "files that contradict themselves": (
        {"unreadable"},
        lambda: three().add(replace(scan(()), wrong="version 3 is missing, 4 exists")),
    ),
    "other bytes than were sent": (
        {"damaged"},
        lambda: History().add(send(0, "a", 0), scan((Read(0, "a", 1),))),
    ),
    "other bytes than were read before": (
        {"unstable-read", "damaged"},
        lambda: three().add(poll(60, (Read(0, "a", 1),))),
    ),
    "a producer's later message lies before its earlier one": (
        {"nonmonotonic-send"},
        lambda: History().add(send(0, "a", 1), send(5, "b", 0), scan(reads("ba"))),
    ),
    "a producer's pipelined message overtakes another": (
        {"out-of-sequence"},
        lambda: History().add(send(0, "a", 1, number=0), send(0, "b", 0, number=1), scan(reads("ba"))),
    ),
    "after a takeover, a counting producer's repeated requests are stored again": (
        {"duplicate"},
        lambda: History().add(
            *(send(0, id_, (0, 1, 2, 5)[at], ended=90 * MS, number=at) for at, id_ in enumerate("abcd")),
            fault(50),
            scan(reads("abcbcd")),
        ),
    ),
    "a message lies before one that was acknowledged before it was sent": (
        {"realtime-order"},
        lambda: History().add(send(0, "a", 1), send(5, "b", 0, process=2), scan(reads("ba"))),
    ),
    "a reader goes back": ({"nonmonotonic-poll"}, lambda: three().add(poll(60, reads("ab")), poll(70, reads("b", 1)))),
    "a reader goes back inside one poll": (
        {"int-nonmonotonic-poll"},
        lambda: three().add(poll(60, (*reads("ab"), *reads("a")))),
    ),
    "a reader jumps": ({"poll-skip"}, lambda: three().add(poll(60, reads("a")), poll(70, reads("c", 2)))),
    "a reader jumps inside one poll": ({"int-poll-skip"}, lambda: three().add(poll(60, reads("a c")))),
    "the end goes back": ({"end-regression"}, lambda: three().add(end(60, 3), end(70, 2))),
    "the end is below what was read": ({"end-regression"}, lambda: three().add(poll(60, reads("abc")), end(70, 2))),
    "an owner of before wrote": (
        {"stale-epoch-write"},
        lambda: History().add(send(0, "a", 0, epoch=2), send(5, "b", 1, epoch=1), scan(reads("ab"))),
    ),
    "half of a request": (
        {"batch-torn"},
        lambda: History().add(batch(0, "ab", (), outcome=Outcome.INFO), scan(reads("a"))),
    ),
    "a request that met an expansion, and changed a key's order": (
        {"batch-torn"},
        lambda: History().add(batch(5, "ab", (1, 0)), fault(0, "expand", "1-2"), scan(reads("ba"))),
    ),
    "a message inside of another request": (
        {"batch-torn"},
        lambda: History().add(batch(0, "ab", (0, 2)), send(0, "x", 1, process=2), scan(reads("axb"))),
    ),
    "the service does not show what the files hold": (
        {"api-hides"},
        lambda: three().add(scan(reads("ab"), "api")),
    ),
    "the service shows what the files do not hold": (
        {"api-invents", "unseen"},
        lambda: History().add(send(0, "a", 0), send(5, "b", 1), scan(reads("")), scan(reads("a"), "api")),
    ),
    # Of groups that pop.
    "a message that no consumer got": ({"queue-lost"}, lambda: queue()),
    "a message that nobody acknowledged": ({"queue-lost"}, lambda: queue(pop(60, "a"))),
    "an acknowledgement that came too late, and the message did not come again": (
        {"queue-lost"},
        lambda: queue(pop(60, "a"), settle(190, "a1", said="handle_expired")),
    ),
    "given to two at once": (
        {"double-lease"},
        lambda: queue(pop(60, "a"), pop(80, "a", 2, process=4), settle(90, "a2")),
    ),
    "in order, given to two at once, and a service was killed in between": (
        {"double-lease"},
        lambda: ordered(fault(54), pop(60, "a", 2, process=4), settle(70, "a2")),
    ),
    "in order, given again after its acknowledgement, and a service was killed in between": (
        {"redelivered-after-ack"},
        lambda: ordered(settle(52, "a1"), fault(54), pop(300, "a", 2, process=4)),
    ),
    "given to another though it was renewed": (
        {"double-lease"},
        lambda: queue(
            pop(60, "a"),
            settle(100, "a1", "extend", renewed="a1x", invisible=500 * MS),
            pop(300, "a", 2, process=4),
            settle(320, "a2"),
        ),
    ),
    "given again after its acknowledgement": (
        {"redelivered-after-ack"},
        lambda: queue(pop(60, "a"), settle(62, "a1"), pop(300, "a", 2)),
    ),
    "given again after its acknowledgement, which was not lost with a service's memory": (
        {"redelivered-after-ack"},
        lambda: queue(
            pop(60, "a"),
            fault(61),
            settle(164, "a1"),
            pop(300, "a", 2),
            rules=GroupRules(group="g", topics=("orders",), max_attempts=3),
        ),
    ),
    "an acknowledgement that came too late": (
        {"stale-ack-accepted"},
        lambda: queue(pop(60, "a"), pop(170, "a", 2, process=4), settle(180, "a1")),
    ),
    "a forged receipt": (
        {"ack-unknown-receipt"},
        lambda: queue(pop(60, "a"), settle(62, "a1"), settle(64, "forged")),
    ),
    "the same attempt again": (
        {"attempt-not-increasing"},
        lambda: queue(pop(60, "a"), pop(170, "a", 1, process=4), settle(180, "a1")),
    ),
    "an attempt too many": (
        {"too-many-attempts"},
        lambda: queue(*(pop(60 + 110 * i, "a", i + 1) for i in range(4)), settle(500, "a4")),
    ),
    "dead before its last attempt": (
        {"dead-too-soon"},
        lambda: queue(pop(60, "a"), letters(("a", 1, "max_attempts"))),
    ),
    "dead twice": (
        {"dead-twice"},
        lambda: queue(pop(60, "a"), letters(("a", 3, "max_attempts"), ("a", 3, "max_attempts"))),
    ),
    "done and dead": (
        {"acked-and-dead"},
        lambda: queue(pop(60, "a"), settle(62, "a1"), letters(("a", 3, "max_attempts"))),
    ),
    "given before its time": (
        {"early-delivery"},
        lambda: queue(pop(60, "a"), settle(62, "a1"), send(40, "d", None, due=200 * MS), scan(reads("abcd"))).add(
            pop(100, "d"), settle(102, "d1")
        ),
    ),
    "a message overtakes": ({"order-break"}, lambda: ordered(pop(54, "b"), settle(56, "a1"))),
    "a pop gives a key's messages the wrong way round": (
        {"order-break"},
        lambda: three().add(
            GroupRules(group="g", topics=("orders",), order="key"),
            Pop(
                process=3,
                begun=50 * MS,
                ended=51 * MS,
                group="g",
                invisible=100 * MS,
                deliveries=(Delivered("b", 1, "b1", P, 1, "k"), Delivered("a", 1, "a1", P, 0, "k")),
            ),
        ),
    ),
    "a group that never came to its end": (
        {"stuck"},
        lambda: three().add(GROUP, Drained(process=9, begun=0, ended=MS, outcome=Outcome.INFO, group="g")),
    ),
    # Of exclusive groups.
    "two clients in one partition": (
        {"two-consumers"},
        lambda: orderly(handled(60, 70, "b"), handled(65, 66, "b", "c2", Outcome.INFO)),
    ),
    "two clients in one partition, and only a service was killed": (
        {"two-consumers"},
        lambda: orderly(handled(60, 70, "b"), fault(61), handled(65, 66, "b", "c2", Outcome.INFO)),
    ),
    "a client that was stopped before its listener, and begins when it wakes up": (
        set(),
        lambda: orderly(fault(60, "client_pause", "c2", ms=100), handled(155, 170, "b"), handled(162, 163, "a", "c2")),
    ),
    "a client that begins without a right long after it was stopped": (
        {"two-consumers", "processed-twice"},
        lambda: orderly(
            fault(60, "client_pause", "c2", ms=100), handled(1_155, 1_170, "b"), handled(1_162, 1_163, "a", "c2")
        ),
    ),
    "a handover repeats a message": ({"processed-twice"}, lambda: orderly(handled(60, 61, "a", "c2"))),
    "a key's message before the one before it": ({"key-order"}, lambda: orderly(handled(60, 61, "c"))),
    "an exclusive group leaves a message": (
        {"unprocessed"},
        lambda: orderly(handled(60, 61, "b"), Drained(process=9, begun=8 * _SECOND, ended=9 * _SECOND, group="g")),
    ),
}
