"""Input and result of an append, and the bookkeeping between them: pure functions over parts and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from deltamq.mq.producer import Part, ProducerSeen, number_of, overlap
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart, Stamped


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one request: any of INTERNAL_SCHEMA's columns in their exact types; `body` is required."""

    rows: pa.RecordBatch
    producer: ProducerStamp | None = None


class MessageIds:
    """The ids of some messages of an append, made on demand."""

    __slots__ = ("_at", "_count", "_rows")

    def __init__(self, rows: Stamped | None = None, at: int = 0, count: int = 0) -> None:
        """Take rows `[at, at + count)`; without `rows` there are no ids."""
        self._rows = rows
        self._at = at
        self._count = count

    def slice(self, at: int, count: int) -> MessageIds:
        """Return `count` of these ids, from position `at` on."""
        return MessageIds(self._rows, self._at + at, count)

    def to_pylist(self) -> list[str]:
        return [] if self._rows is None else self._rows.message_ids(self._at, self._count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where an appended batch is stored: offsets `[base_offset, base_offset + count)`.

    `duplicate` says that an earlier request stored it; `message_ids` is then empty.
    """

    base_offset: int
    count: int
    duplicate: bool
    durable: bool
    version: int
    message_ids: MessageIds


def repeats(parts: Sequence[RowsPart]) -> dict[int, int]:
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


def only(rows: pa.RecordBatch, parts: Sequence[RowsPart], keep: set[int]) -> pa.RecordBatch:
    """Return the rows of the parts whose positions are in `keep`."""
    mask = np.repeat([i in keep for i in range(len(parts))], [p.count for p in parts])
    return rows.filter(pa.array(mask))


def requests(parts: Sequence[RowsPart], base: int, time_ms: int) -> list[Part]:
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


def appended(
    parts: Sequence[RowsPart],
    stored: Sequence[Part | None],
    again: Mapping[int, int],
    base: int,
    ids: MessageIds,
    *,
    durable: bool,
    version: int,
) -> list[Appended]:
    """Return where each part is stored: new parts from `base` on, with `ids` in turn; others where they were.

    `stored` has the parts of earlier appends, `again` the repeats within this append (see `repeats`).
    """
    results: list[Appended] = []
    at = 0
    for i, (part, known) in enumerate(zip(parts, stored, strict=True)):
        earlier = known or (results[again[i]] if i in again else None)
        count = part.count if earlier is None else earlier.count
        results.append(
            Appended(
                base_offset=base + at if earlier is None else earlier.base_offset,
                count=count,
                duplicate=earlier is not None,
                durable=durable,
                version=version,
                message_ids=ids.slice(at, count) if earlier is None else MessageIds(),
            )
        )
        at += count if earlier is None else 0
    return results


def with_numbers(
    parts: Sequence[RowsPart], seen: Callable[[str], ProducerSeen | None], *, known_since_ms: int
) -> Sequence[RowsPart]:
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
        return [_numbered(parts[0], parts[0].producer, None, seen, known_since_ms)]
    before: dict[str, ProducerSeen] = {}
    return [_numbered(part, part.producer, before, seen, known_since_ms) for part in parts]


def _numbered(
    part: RowsPart,
    stamp: ProducerStamp | None,
    before: dict[str, ProducerSeen] | None,
    seen: Callable[[str], ProducerSeen | None],
    known_since_ms: int,
) -> RowsPart:
    """Return the part with its number; `before` has producers' earlier parts of the append, None for an only part."""
    if stamp is None or stamp.sequence is None:
        return part
    known = (before.get(stamp.id) if before else None) or seen(stamp.id)
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
