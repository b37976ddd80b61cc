"""Keys that moved: how an ordered topic keeps their order across expansions (SPEC ROUTE-6).

An expansion gives logical partitions (LPs) of old partitions to new ones. Messages of a moved key are in the old
partition first and in the new one later, so a group may have those of the new one only when it has consumed the old
one up to the end that it had at the move:

    orders@A     ... k1 k2 | sealed at 120, the old partition gets no more messages of the moved LPs
    orders#1@A             | k3 k4 ...     given to a group whose offset in orders@A is at least 120

A move is *sealed* by the broker of the old partition: it stops to append messages of the moved LPs, makes the end
certain and records it. Until then the LPs still go to the old partition (`MovedKeys.table`), so nobody writes to the
new one what could be overtaken. LPs move on with later expansions; then every partition on the way counts, since one
in the middle may have got no message of a key that waits in an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mq.errors import Corrupt
from mq.limits import LOGICAL_PARTITIONS
from mq.meta.topics import Event, MetaState, TopicPut
from mq.routing import Route, Table
from mq.stored_json import Form, form, forms_of

__all__ = [
    "MOVE_EVENTS",
    "KeysMoved",
    "Move",
    "MoveEvent",
    "MoveSealed",
    "MovedKeys",
    "decide_seal",
    "first_blocked",
    "moves_between",
    "moves_of",
]

Blocked = NDArray[np.bool_]


class Move(NamedTuple):
    """LPs that one expansion took from one partition for another."""

    #: That of the route after it.
    epoch: int
    source: str
    target: str
    #: Ranges `[low, high)` of LPs.
    ranges: tuple[tuple[int, int], ...]
    #: The end offset of `source` at the move; None until it is sealed.
    end_offset: int | None = None


def moves_between(before: Route, after: Route) -> tuple[Move, ...]:
    """What an expansion from one route to the other moves; the ends are not known yet."""
    moved = np.flatnonzero(_names(before) != _names(after))
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for lp in moved.tolist():
        pair = (before.partitions[before.table[lp]], after.partitions[after.table[lp]])
        those = ranges.setdefault(pair, [])
        if those and those[-1][1] == lp:
            those[-1] = (those[-1][0], lp + 1)
        else:
            those.append((lp, lp + 1))
    return tuple(Move(after.epoch, source, target, tuple(those)) for (source, target), those in sorted(ranges.items()))


def moves_of(state: MetaState, events: Iterable[Event]) -> list[KeysMoved]:
    """What must be appended together with `events`, decided on `state`: the moves of ordered topics that they expand.

    A topic that is not `strict` keeps no order across an expansion (SPEC SEND-2), so its keys move at once.
    """
    found = []
    for event in events:
        if not isinstance(event, TopicPut) or event.topic.settings.order_strategy != "strict":
            continue
        before = state.topics.get(event.topic.name)
        if before is not None and before.id == event.topic.id and before.route is not event.topic.route:
            moves = moves_between(before.route, event.topic.route)
            if moves:
                found.append(KeysMoved(topic_id=event.topic.id, moves=moves))
    return found


def _names(route: Route) -> NDArray[np.object_]:
    return np.array(route.partitions, dtype=object)[route.table]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysMoved:
    """A topic was expanded. Append it together with the `TopicPut` of the new route."""

    kind: ClassVar[str] = "keys_moved"
    topic_id: str
    moves: tuple[Move, ...]

    @property
    def key(self) -> str:
        return f"moves/{self.topic_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSealed:
    """The old partition of a move has got its last message of the LPs that moved."""

    kind: ClassVar[str] = "move_sealed"
    topic_id: str
    epoch: int
    source: str
    end_offset: int

    @property
    def key(self) -> str:
        return f"moves/{self.topic_id}"


MoveEvent = KeysMoved | MoveSealed


class _Moves(msgspec.Struct):
    """Moves as they are stored: none of them is sealed yet."""

    topic_id: str
    moves: tuple[tuple[int, str, str, tuple[tuple[int, int], ...]], ...]

    @classmethod
    def of(cls, event: KeysMoved) -> _Moves:
        return cls(event.topic_id, tuple((one.epoch, one.source, one.target, one.ranges) for one in event.moves))

    def event(self) -> KeysMoved:
        return KeysMoved(topic_id=self.topic_id, moves=tuple(Move(*one) for one in self.moves))


#: How they are stored, by kind.
MOVE_EVENTS: Final[Mapping[str, Form[Any]]] = {
    KeysMoved.kind: form(_Moves, _Moves.event, _Moves.of),
    **forms_of(MoveSealed),
}


class _Need(NamedTuple):
    """Up to where partitions must be consumed before messages of these LPs are given; None: not sealed yet."""

    ends: Mapping[str, int | None]
    lps: NDArray[np.int16]


# Without slots: the cached paths need a place.
@dataclass(frozen=True)
class MovedKeys:
    """All moves of one life of a topic, in the order of their epochs. Immutable: `apply_all` returns the next one."""

    moves: tuple[Move, ...] = field(default=())

    def apply_all(self, events: Iterable[MoveEvent]) -> MovedKeys:
        """The moves after `events` of this life of the topic."""
        moves = list(self.moves)
        for event in events:
            if isinstance(event, KeysMoved):
                newer = not moves or all(move.epoch > moves[-1].epoch for move in event.moves)
                _expect(newer and all(move.end_offset is None for move in event.moves), event)
                moves += event.moves
                continue
            places = [at for at, move in enumerate(moves) if (move.epoch, move.source) == (event.epoch, event.source)]
            _expect(bool(places), event)
            for at in places:
                _expect(moves[at].end_offset in (None, event.end_offset), event)
                moves[at] = moves[at]._replace(end_offset=event.end_offset)
        return replace(self, moves=tuple(moves))

    @cached_property
    def _way(self) -> dict[int, tuple[Move, ...]]:
        """For each LP that ever moved, its moves."""
        way: dict[int, tuple[Move, ...]] = {}
        for move in self.moves:
            for low, high in move.ranges:
                for lp in range(low, high):
                    way[lp] = (*way.get(lp, ()), move)
        return way

    @cached_property
    def waiting(self) -> frozenset[str]:
        """The partitions with moves that wait for a seal."""
        return frozenset(move.source for move in self.moves if move.end_offset is None)

    def unsealed(self, source: str) -> tuple[int, ...]:
        """The epochs of moves that wait for the broker of `source` to seal them, oldest first."""
        return tuple(sorted({one.epoch for one in self.moves if one.source == source and one.end_offset is None}))

    def sealed_up_to(self, source: str) -> int:
        """The epoch of the last move from `source` before which none waits for a seal; 0 for none.

        Who appends to `source` by `table` knows the fences up to this one (see `tables.log.fences`).
        """
        epochs = {move.epoch for move in self.moves if move.source == source}
        waiting = self.unsealed(source)
        return max((epoch for epoch in epochs if not waiting or epoch < waiting[0]), default=0)

    def table(self, route: Route) -> Table:
        """For each LP the index of the partition that its messages go to now: the route's, or the old one's.

        An LP goes where its last sealed move in a row brought it: what waits for a seal has not moved yet.
        """
        table = route.table.copy()
        index = {partition: at for at, partition in enumerate(route.partitions)}
        for lp, way in self._way.items():
            waiting = next((move for move in way if move.end_offset is None), None)
            if waiting is not None:
                table[lp] = index[waiting.source]
        table.flags.writeable = False
        return table

    @cached_property
    def _needs(self) -> dict[str, list[_Need]]:
        """For each partition that LPs moved to, what must be consumed before: LPs with one way are together."""
        lps: dict[tuple[Move, ...], list[int]] = {}
        for lp, way in self._way.items():
            for reached in range(1, len(way) + 1):
                lps.setdefault(way[:reached], []).append(lp)
        needs: dict[str, list[_Need]] = {}
        for way, those in lps.items():
            ends = {move.source: move.end_offset for move in way}
            needs.setdefault(way[-1].target, []).append(_Need(ends, np.array(those, dtype=np.int16)))
        return needs

    def sources(self, target: str) -> set[str]:
        """The partitions whose progress decides what a group may have of `target`."""
        return {source for need in self._needs.get(target, ()) for source in need.ends}

    def blocked(self, target: str, positions: Mapping[str, int]) -> Blocked | None:
        """The LPs whose messages in `target` a group may not have yet; None when there are none.

        `positions` are the offsets of the next messages that the group must still finish in each of `sources(target)`:
        what is committed, or where the group would begin, or the minimum offset, whichever is greatest.
        """
        blocked = np.zeros(LOGICAL_PARTITIONS, dtype=np.bool_)
        for need in self._needs.get(target, ()):
            blocked[need.lps] = any(end is None or positions[source] < end for source, end in need.ends.items())
        return blocked if blocked.any() else None


def first_blocked(blocked: Blocked | None, lps: NDArray[np.int16], has_key: Blocked) -> int:
    """How many messages of a batch, in its order, a group may have: those before the first with a blocked key.

    `lps` are the LPs of the messages' keys; those without a key are never blocked.
    """
    if blocked is None:
        return int(lps.size)
    stops = np.flatnonzero(blocked[lps] & has_key)
    return int(stops[0]) if stops.size else int(lps.size)


def decide_seal(moved: MovedKeys, topic_id: str, source: str, epoch: int, end_offset: int) -> tuple[MoveEvent, ...]:
    """The event that seals the moves from `source` of one expansion; none when they are sealed.

    The broker of `source` has stopped to append messages of these LPs and has made sure, by a commit of its own in
    that partition, that nothing of a broker before it can still arrive: `end_offset` is the end after that commit.
    """
    if epoch not in moved.unsealed(source):
        return ()
    return (MoveSealed(topic_id=topic_id, epoch=epoch, source=source, end_offset=end_offset),)


def _expect(fits: bool, event: MoveEvent) -> None:
    """An event continues what the events before it left, or the log contradicts itself."""
    if not fits:
        raise Corrupt(f"a {event.kind} event contradicts those before it", code="meta_event_corrupt")
