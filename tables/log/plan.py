"""What an append stores and where, decided from its log's newest state: parts in, decisions out, no store, no clock.

    parts --number--> known requests? --yes--> their places                      (SPEC SEND-5)
                         '--no--> fences, expected offset --> offsets from the log's end on

An attempt that lost a race is planned again, from the state that the winner left. What is stored ahead of its turn is
planned for the state that the commit under way will leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from deltamq.mq.errors import OffsetMismatch, Unavailable
from deltamq.mq.limits import OFFSET_MAX
from deltamq.mq.producer import Part, ProducerSeen, number_of, overlap
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart
from deltamq.tables.log.batch import Appended, MessageIds
from deltamq.tables.log.fences import check_fences


class KnownRequests(Protocol):
    """The producers' requests that a log remembers."""

    def seen(self, producer_id: str) -> ProducerSeen | None:
        """Return all that is remembered of a producer; None for nothing."""

    def find(self, producer_id: str, seq: int, indexes: tuple[int, ...] | None) -> Part | None:
        """Return the part that holds these messages of a request; None if none is remembered."""


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """What an append must know of its log."""

    name: str
    end_offset: int
    fences: Mapping[str, int]
    requests: KnownRequests
    #: The time from which on every producer born then is remembered, whatever was forgotten before.
    known_since_ms: int
    offset_max: int = OFFSET_MAX


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the parts of an append: `fresh` ones get offsets from `base` on, the others have their places."""

    parts: Sequence[RowsPart]
    #: The parts that earlier appends stored, None for the others.
    stored: Sequence[Part | None]
    #: Positions of parts that repeat an earlier part of this append, each with that part's position.
    again: Mapping[int, int]
    #: Positions of the parts whose rows are stored.
    fresh: Sequence[int]
    base: int

    @property
    def is_all_fresh(self) -> bool:
        """Whether every part is stored."""
        return len(self.fresh) == len(self.parts)

    def requests(self, append_ms: int) -> list[Part]:
        """Return the producers' requests that the rows are of, with their places."""
        return requests([self.parts[at] for at in self.fresh], self.base, append_ms)

    def results(self, ids: MessageIds, *, durable: bool, version: int) -> list[Appended]:
        """Return where each part is stored: fresh parts with `ids` in turn, others where they were."""
        results: list[Appended] = []
        at = 0
        for i, (part, known) in enumerate(zip(self.parts, self.stored, strict=True)):
            earlier = known or (results[self.again[i]] if i in self.again else None)
            count = part.count if earlier is None else earlier.count
            results.append(
                Appended(
                    base_offset=self.base + at if earlier is None else earlier.base_offset,
                    count=count,
                    duplicate=earlier is not None,
                    durable=durable,
                    version=version,
                    message_ids=ids.slice(at, count) if earlier is None else MessageIds(),
                )
            )
            at += count if earlier is None else 0
        return results


def plan(
    parts: Sequence[RowsPart],
    log: LogView,
    *,
    expected_offset: int | None = None,
    fence_epochs: Mapping[str, int] | None = None,
) -> Plan:
    """Decide what an append of these parts stores; `PartitionLog.append` says what the options mean.

    Raises
    ------
    OutOfSequence, Fenced, OffsetMismatch
        Nothing may be stored.
    Unavailable
        `offsets_exhausted`: the log has no more offsets.
    """
    parts = _with_numbers(parts, log.requests, log.known_since_ms)
    stored = [_stored(part, log.requests) for part in parts]
    again = _repeats(parts)
    fresh = [at for at, known in enumerate(stored) if known is None and at not in again]
    if fresh:
        if fence_epochs is not None:
            check_fences(log.fences, fence_epochs, log.name)
        if expected_offset is not None and expected_offset != log.end_offset:
            raise OffsetMismatch(
                f"expected_offset is {expected_offset}, the end offset is {log.end_offset}",
                field="expected_offset",
                extra={"end_offset": log.end_offset},
            )
        if log.end_offset + sum(parts[at].count for at in fresh) > log.offset_max:
            raise Unavailable(f"{log.name}: offsets are used up", code="offsets_exhausted")
    return Plan(parts=parts, stored=stored, again=again, fresh=fresh, base=log.end_offset)


def _stored(part: RowsPart, known: KnownRequests) -> Part | None:
    stamp = part.producer
    return None if stamp is None else known.find(stamp.id, stamp.seq, stamp.indexes)


def _repeats(parts: Sequence[RowsPart]) -> dict[int, int]:
    """Return the positions of parts that repeat an earlier part of the same append, each with that part's position."""
    first: dict[tuple[str, int], tuple[int, ...]] = {}
    repeated = {}
    for i, part in enumerate(parts):
        stamp = part.producer
        if stamp is None:
            continue
        others = first.setdefault((stamp.id, stamp.seq), (i,))
        if others[0] == i:
            continue
        for at in others:
            other = parts[at].producer
            if other is not None and overlap(other.indexes, stamp.indexes):
                repeated[i] = at
                break
        else:
            first[stamp.id, stamp.seq] = (*others, i)
    return repeated


def requests(parts: Sequence[RowsPart], base: int, time_ms: int) -> list[Part]:
    """Return the producers' requests that parts from offset `base` on are of."""
    stored = []
    for part in parts:
        if part.producer is not None:
            stored.append(
                Part(
                    producer_id=part.producer.id,
                    seq=part.producer.seq,
                    base_offset=base,
                    count=part.count,
                    total=part.producer.total,
                    time_ms=time_ms,
                    indexes=part.producer.indexes,
                )
            )
        base += part.count
    return stored


def _with_numbers(parts: Sequence[RowsPart], known: KnownRequests, known_since_ms: int) -> Sequence[RowsPart]:
    """Return the parts, with the numbers of requests of producers that count their messages (`mq.producer`).

    Parts of one append follow each other. Numbers are given within the append, from the log's newest state: another
    process may have stored the producer's last request a moment ago.

    Raises
    ------
    OutOfSequence
        A part does not follow its producer's last one: nothing of the append may be stored.
    """
    if not any(part.producer is not None and part.producer.sequence is not None for part in parts):
        return parts
    if len(parts) == 1:
        return [_numbered(parts[0], parts[0].producer, None, known, known_since_ms)]
    before: dict[str, ProducerSeen] = {}
    return [_numbered(part, part.producer, before, known, known_since_ms) for part in parts]


def _numbered(
    part: RowsPart,
    stamp: ProducerStamp | None,
    before: dict[str, ProducerSeen] | None,
    requests: KnownRequests,
    known_since_ms: int,
) -> RowsPart:
    """Return the part with its number; `before` has producers' earlier parts of the append, None for an only part."""
    if stamp is None or stamp.sequence is None:
        return part
    known = (before.get(stamp.id) if before else None) or requests.seen(stamp.id)
    if stamp.earlier is not None:
        known_since_ms = max(known_since_ms, stamp.earlier.known_since_ms)
        all_parts = {**stamp.earlier.parts, **({} if known is None else known.parts)}
        known = ProducerSeen(max(all_parts), all_parts) if all_parts else None
    number = number_of(stamp.sequence, part.count, known, known_since_ms=known_since_ms)
    if before is not None:
        parts = {} if known is None else dict(known.parts)
        if number not in parts:
            parts[number] = (
                Part(producer_id=stamp.id, seq=number, base_offset=-1, count=part.count, total=part.count, time_ms=0),
            )
        before[stamp.id] = ProducerSeen(max(parts), parts)
    return RowsPart(part.count, ProducerStamp(stamp.id, number, stamp.indexes, stamp.total))
