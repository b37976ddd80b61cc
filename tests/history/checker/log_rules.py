"""The rules of a log (README.md): each takes the history, or what it adds up to, and is O(n log n)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import msgspec

from tests.history.checker.anomalies import Findings
from tests.history.checker.ops import FOREVER, Assign, End, History, Outcome, Place, Poll, Read, Send

__all__ = ["RETRY", "Log", "check_log"]

#: What a group gets again lies in partitions that begin so.
RETRY: Final = "%RETRY%"


class Log(msgspec.Struct):
    """What all witnesses together say of all partitions."""

    #: The sender of a message.
    writer: dict[str, Send] = msgspec.field(default_factory=dict)
    #: Which ids were seen at an offset, by readers or in answers to producers.
    at: dict[Place, set[str]] = msgspec.field(default_factory=lambda: defaultdict(set))
    #: The same, by id.
    places: dict[str, set[Place]] = msgspec.field(default_factory=lambda: defaultdict(set))
    #: Where readers saw a message; none, when nobody did.
    read: dict[str, set[Place]] = msgspec.field(default_factory=lambda: defaultdict(set))
    #: The offsets that exist, for each partition.
    offsets: dict[str, list[int]] = msgspec.field(default_factory=dict)
    #: The highest offset that was read, for each partition.
    top: dict[str, int] = msgspec.field(default_factory=dict)
    #: Every read, with its moment.
    reads: list[tuple[str, Read, int]] = msgspec.field(default_factory=list)

    @staticmethod
    def of(history: History) -> Log:
        """Add a history up."""
        log = Log()
        for send in history.sends:
            for id_ in send.ids:
                log.writer.setdefault(id_, send)
            for id_, place in zip(send.ids, send.placed, strict=False):
                log._put(id_, place)
        for source in (history.polls, history.scans):
            for poll in source:
                for read in poll.reads:
                    log._see(poll.partition, read, poll.ended)
        for pop in history.pops:
            # Where a retried message is now says nothing about its log.
            for one in pop.deliveries:
                if not one.partition.startswith(RETRY):
                    log._put(one.id, Place(one.partition, one.offset))
        offsets: dict[str, set[int]] = defaultdict(set)
        for partition, offset in log.at:
            offsets[partition].add(offset)
        log.offsets = {partition: sorted(found) for partition, found in offsets.items()}
        return log

    def _put(self, id_: str, place: Place) -> None:
        self.at[place].add(id_)
        self.places[id_].add(place)

    def _see(self, partition: str, read: Read, moment: int) -> None:
        place = Place(partition, read.offset)
        self._put(read.id, place)
        self.read[read.id].add(place)
        self.top[partition] = max(self.top.get(partition, -1), read.offset)
        self.reads.append((partition, read, moment))

    def successor(self, partition: str, offset: int) -> int | None:
        """The next offset that exists."""
        offsets = self.offsets.get(partition, [])
        at = bisect_right(offsets, offset)
        return offsets[at] if at < len(offsets) else None


def check_log(history: History, log: Log, found: Findings) -> None:
    """All rules of this module."""
    _places(log, found)
    _reads(log, found)
    _writes(history, log, found)
    _holes(history, found)
    _realtime(history, found)
    _sequences(history, log, found)
    _polls(history, log, found)
    _ends(history, found)
    _epochs(history, found)
    _torn(history, log, found)
    _witnesses(history, found)


def _places(log: Log, found: Findings) -> None:
    """`inconsistent-offset` and `duplicate`."""
    for place, ids in log.at.items():
        if len(ids) > 1:
            found.add("inconsistent-offset", _name(place), f"holds {sorted(ids)}")
    for id_, places in log.places.items():
        if len(places) > 1:
            writer = log.writer.get(id_)
            if writer is not None and writer.producer is None and writer.outcome is Outcome.INFO:
                found.allow("own-repeat")
                continue
            found.add("duplicate", id_, f"at {sorted(places)}", writer.begun if writer else 0)


def _reads(log: Log, found: Findings) -> None:
    """`phantom`, `aborted-read`, `damaged`, `unstable-read`."""
    crcs: dict[tuple[Place, str], int] = {}
    for partition, read, moment in log.reads:
        place = Place(partition, read.offset)
        if crcs.setdefault((place, read.id), read.crc) != read.crc:
            found.add("unstable-read", _name(place), f"{read.id} had other bytes before", moment)
        writer = log.writer.get(read.id)
        if writer is None:
            found.add("phantom", _name(place), f"{read.id} was never sent", moment)
        elif writer.crcs[writer.ids.index(read.id)] != read.crc:
            found.add("damaged", _name(place), f"{read.id} was sent with other bytes", moment)
    for id_ in log.read:
        writer = log.writer.get(id_)
        if writer is not None and writer.outcome is Outcome.FAIL:
            found.add("aborted-read", id_, "its send was refused", writer.begun)


def _writes(history: History, log: Log, found: Findings) -> None:
    """`lost-write` and `unseen`; what became of sends without an answer."""
    for send in history.sends:
        if send.outcome is Outcome.INFO:
            seen = any(log.read.get(id_) for id_ in send.ids)
            found.allow("unknown-stored" if seen else "unknown-absent")
        if not send.ok:
            continue
        for index, id_ in enumerate(send.ids):
            if log.read.get(id_):
                continue
            place = send.placed[index] if send.placed else None
            if place is not None and place.offset <= log.top.get(place.partition, -1):
                found.add("lost-write", _name(place), f"{id_} was acknowledged, later offsets were read", send.ended)
            else:
                found.add("unseen", _name(place) if place else send.topic, f"{id_} was acknowledged", send.ended)


def _holes(history: History, found: Findings) -> None:
    """`hole`: in a scan, which has a partition as a whole, but for remappings; `unreadable`: it could not have it."""
    for scan in history.scans:
        if scan.wrong is not None:
            found.add("unreadable", scan.partition, f"{scan.witness}: {scan.wrong}", scan.begun)
        offsets = sorted({read.offset for read in scan.reads})
        for before, after in pairwise(offsets):
            if _beyond_jumps(before + 1, scan.jumps) < after:
                found.add("hole", scan.partition, f"{scan.witness}: nothing from {before + 1} to {after - 1}")


def _beyond_jumps(offset: int, jumps: tuple[tuple[int, int], ...]) -> int:
    """The offset that is expected next, when remappings may have left out some."""
    for low, high in sorted(jumps):
        if offset == low:
            offset = high
    return offset


def _realtime(history: History, found: Findings) -> None:
    """`realtime-order` and `nonmonotonic-send`: an append that began after another's answer lies behind it.

    One sweep: sends by their beginning, those that were answered by then by their end; the highest offset so far rules.
    """
    placed: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for send in history.sends:
        for place in send.placed:
            placed[place.partition].append((send.begun, send.ended, place.offset, send.process))
    for partition, sends in placed.items():
        for process, begun, offset, highest, by in _behind(sends):
            name = "nonmonotonic-send" if process == by else "realtime-order"
            found.add(name, f"{partition}/{offset}", f"offset {highest} was acknowledged before it was sent", begun)


def _behind(sends: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int, int, int, int]]:
    answered = sorted(sends, key=lambda one: one[1])
    at, highest, by = 0, -1, -1
    own: dict[int, int] = {}
    for begun, _, offset, process in sorted(sends):
        while at < len(answered) and answered[at][1] < begun:
            _, _, other, writer = answered[at]
            own[writer] = max(own.get(writer, -1), other)
            if other > highest:
                highest, by = other, writer
            at += 1
        if own.get(process, -1) >= offset:
            yield process, begun, offset, own[process], process
        elif highest >= offset:
            yield process, begun, offset, highest, by


def _sequences(history: History, log: Log, found: Findings) -> None:
    """`out-of-sequence`: in a partition, what a producer that counts has sent lies in the order of sending.

    Of a message that lies there twice (`duplicate`), the first place counts.
    """
    placed: dict[tuple[str, int], list[tuple[int, int, str]]] = defaultdict(list)
    for send in history.sends:
        for at, id_ in enumerate(send.ids if send.number is not None else ()):
            for partition, offset in _first_places(log.places.get(id_, ())):
                placed[partition, send.process].append((offset, (send.number or 0) + at, id_))
    for (partition, _), messages in placed.items():
        highest, by = -1, ""
        for offset, number, id_ in sorted(messages):
            if number < highest:
                found.add("out-of-sequence", f"{partition}/{offset}", f"{id_} was sent before {by}, and lies behind it")
            else:
                highest, by = number, id_


def _first_places(places: Iterable[Place]) -> Iterator[Place]:
    """The first place in each partition."""
    seen: set[str] = set()
    for place in sorted(places):
        if place.partition not in seen:
            seen.add(place.partition)
            yield place


def _polls(history: History, log: Log, found: Findings) -> None:
    """`poll-skip` and `nonmonotonic-poll`, with `int-` inside one poll."""
    readers: dict[tuple[int, str], list[Poll | Assign]] = defaultdict(list)
    looked: list[Poll | Assign] = [*history.polls, *history.assigns]
    for one in looked:
        readers[one.process, one.partition].append(one)
    for (process, partition), ops in readers.items():
        last: int | None = None
        for op in sorted(ops, key=lambda op: (op.begun, op.ended)):
            if isinstance(op, Assign):
                last = op.offset - 1
                continue
            for index, read in enumerate(op.reads):
                prefix = "int-" if index else ""
                where = f"{partition}/{read.offset}"
                if last is not None and read.offset <= last:
                    found.add(f"{prefix}nonmonotonic-poll", where, f"reader {process} was at {last}", op.ended)
                elif last is not None and log.successor(partition, last) != read.offset:
                    said = f"reader {process} was at {last}, which {log.successor(partition, last)} follows"
                    found.add(f"{prefix}poll-skip", where, said, op.ended)
                last = read.offset


def _ends(history: History, found: Findings) -> None:
    """`end-regression`: an end offset below one that was told, or below what was read, before it was asked for."""
    told: dict[str, list[tuple[int, int]]] = defaultdict(list)
    ends = [end for end in history.ends if end.ok]
    for end in ends:
        told[end.partition].append((end.ended, end.offset))
    for poll in history.polls:
        if poll.reads:
            told[poll.partition].append((poll.ended, max(read.offset for read in poll.reads) + 1))
    asked: dict[str, list[End]] = defaultdict(list)
    for end in ends:
        asked[end.partition].append(end)
    for partition, asks in asked.items():
        known, at, highest = sorted(told[partition]), 0, 0
        for end in sorted(asks, key=lambda one: one.begun):
            while at < len(known) and known[at][0] < end.begun:
                highest = max(highest, known[at][1])
                at += 1
            if end.offset < highest:
                found.add("end-regression", partition, f"end {end.offset} after {highest}", end.begun)


def _epochs(history: History, found: Findings) -> None:
    """`stale-epoch-write`: along offsets the owners' epochs never go back."""
    stored: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for send in history.sends:
        for place in send.placed if send.epoch is not None else ():
            stored[place.partition].append((place.offset, send.epoch or 0))
    for partition, rows in stored.items():
        highest = 0
        for offset, epoch in sorted(rows):
            if epoch < highest:
                found.add("stale-epoch-write", f"{partition}/{offset}", f"epoch {epoch} after {highest}")
            highest = max(highest, epoch)


def _torn(history: History, log: Log, found: Findings) -> None:
    """`batch-torn`: what one request stored in a partition lies together and in its order.

    With a named partition it is all of the request or nothing. A request that meets an expansion may reach a partition
    in two parts, by the old route and by the new one: then what is left is the order of each key.
    """
    grown = min((fault.begun for fault in history.faults if fault.kind in ("expand", "remap")), default=FOREVER)
    for send in history.sends:
        if len(send.ids) == 1 or send.due is not None or send.outcome is Outcome.FAIL:
            continue
        by_key = send.ended > grown
        stored: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for id_, key in zip(send.ids, send.keys, strict=True):
            places = sorted(log.read.get(id_) or log.places.get(id_) or ())
            if places and (key is not None or not by_key):
                stored[places[0].partition, key if by_key else None].append(places[0].offset)
        for (partition, _), offsets in stored.items():
            if _is_torn(send, offsets, by_key=by_key):
                said = f"{len(offsets)} of {len(send.ids)} messages of one request at {offsets[:20]}"
                found.add("batch-torn", f"{partition} {send.ids[0]}", said, send.begun)


def _is_torn(send: Send, offsets: list[int], *, by_key: bool) -> bool:
    if by_key:
        return offsets != sorted(offsets)
    whole = send.partition is None or len(offsets) == len(send.ids)
    return not whole or offsets != list(range(offsets[0], offsets[0] + len(offsets)))


def _witnesses(history: History, found: Findings) -> None:
    """`api-hides` and `api-invents`: what the service reads against what the files hold."""
    by_witness: dict[str, dict[str, set[tuple[int, str, int]]]] = defaultdict(dict)
    for scan in history.scans:
        if scan.wrong is not None:
            continue
        by_witness[scan.witness][scan.partition] = {(read.offset, read.id, read.crc) for read in scan.reads}
    for partition, files in by_witness["files"].items():
        api = by_witness["api"].get(partition)
        if api is None:
            continue
        for offset, id_, _ in sorted(files - api)[:100]:
            found.add("api-hides", f"{partition}/{offset}", f"{id_} is in the files")
        for offset, id_, _ in sorted(api - files)[:100]:
            found.add("api-invents", f"{partition}/{offset}", f"{id_} is not in the files")


def _name(place: Place) -> str:
    return f"{place.partition}/{place.offset}"
