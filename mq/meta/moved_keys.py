"""Keys that moved: how an ordered topic keeps their order across expansions (SPEC ROUTE-6).

An expansion gives logical partitions (LPs) of old partitions to new ones. Messages of a moved key are in the old
partition first and in the new one later. So a group may read them in the new partition only when it has consumed the
old one up to its end offset at the move:

    orders@A     ... k1 k2 | sealed at 120, the old partition gets no more messages of the moved LPs
    orders#1@A             | k3 k4 ...     delivered to a group whose offset in orders@A is at least 120

The broker of the old partition *seals* a move: it stops appending messages of the moved LPs, makes the end offset
certain and records it. Until then the LPs still go to the old partition (`MovedKeys.table`), so no later message can
overtake an earlier one. LPs may move again with later expansions. Then every partition on the way counts, because a
partition in the middle may have no message of a key that waits in an earlier one.

A logical queue that is remapped moves, too: all its LPs go from its old leader to the new one, and with them messages
without a key, and messages of other LPs that producers sent to the queue by its name. An `available` remapping is
`at_once`: messages go to the new leader before the old one is sealed, and have no logical offsets until then (SPEC
STATIC-9).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from deltamq.mq.limits import LOGICAL_PARTITIONS
from deltamq.mq.meta.topics import Event, MetaState, TopicPut
from deltamq.mq.partitioners import Table
from deltamq.mq.routing import Route
from deltamq.mq.static.completeness import Handover
from deltamq.mq.stored_json import Form, check_event, form, forms_of

#: Whether a group must wait for messages: for each LP, and last for messages without a key.
Blocked = NDArray[np.bool_]


class Move(NamedTuple):
    """LPs that one expansion moved from one partition to another."""

    #: Epoch of the route after the expansion.
    epoch: int
    source: str
    target: str
    #: Ranges `[low, high)` of LPs.
    ranges: tuple[tuple[int, int], ...]
    #: The end offset of `source` at the move; None until it is sealed.
    end_offset: int | None = None
    #: Whether a logical queue was remapped: all its messages move, whatever their key.
    remaps: bool = False
    #: Whether messages go to `target` before `source` is sealed.
    at_once: bool = False


def moves_between(before: Route, after: Route, *, remaps: bool = False, at_once: bool = False) -> tuple[Move, ...]:
    """Return the moves from one route to the other; their end offsets are not known yet."""
    moved = np.flatnonzero(_names(before) != _names(after))
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for lp in moved.tolist():
        pair = (before.partitions[before.table[lp]], after.partitions[after.table[lp]])
        spans = ranges.setdefault(pair, [])
        if spans and spans[-1][1] == lp:
            spans[-1] = (spans[-1][0], lp + 1)
        else:
            spans.append((lp, lp + 1))
    return tuple(
        Move(after.epoch, source, target, tuple(spans), remaps=remaps, at_once=at_once)
        for (source, target), spans in sorted(ranges.items())
    )


def moves_of(state: MetaState, events: Iterable[Event]) -> list[KeysMoved]:
    """Return the moves of ordered topics that `events` expand, decided on `state`; append them with `events`.

    A topic that is not `strict` keeps no order across an expansion (SPEC SEND-2), so its keys move at once.
    """
    moved = []
    for event in events:
        if not isinstance(event, TopicPut) or event.topic.settings.order_strategy != "strict":
            continue
        before = state.topics.get(event.topic.name)
        if before is not None and before.id == event.topic.id and before.route is not event.topic.route:
            moves = moves_between(before.route, event.topic.route)
            if moves:
                moved.append(KeysMoved(topic_id=event.topic.id, moves=moves))
    return moved


def _names(route: Route) -> NDArray[np.object_]:
    return np.array(route.partitions, dtype=object)[route.table]


class KeysMoved(msgspec.Struct, frozen=True, kw_only=True):
    """A topic was expanded or remapped. Append it together with the `TopicPut` of the new route."""

    kind: ClassVar[str] = "keys_moved"
    topic_id: str
    moves: tuple[Move, ...]

    @property
    def key(self) -> str:
        return f"moves/{self.topic_id}"


class MoveSealed(msgspec.Struct, frozen=True, kw_only=True):
    """The old partition of a move holds its last message of the LPs that moved."""

    kind: ClassVar[str] = "move_sealed"
    topic_id: str
    epoch: int
    source: str
    end_offset: int
    #: When it was sealed, in milliseconds since 1970.
    at_ms: int = 0

    @property
    def key(self) -> str:
        return f"moves/{self.topic_id}"


MoveEvent = KeysMoved | MoveSealed


class StoredMove(msgspec.Struct, array_like=True):
    """The stored form of a move in a snapshot."""

    epoch: int
    source: str
    target: str
    ranges: tuple[tuple[int, int], ...]
    end_offset: int | None
    remaps: bool
    at_once: bool

    @classmethod
    def of(cls, move: Move) -> StoredMove:
        return cls(*move)

    def move(self) -> Move:
        return Move(*msgspec.structs.astuple(self))


class _NewMove(msgspec.Struct, array_like=True):
    """The stored form of a move that is not sealed yet."""

    epoch: int
    source: str
    target: str
    ranges: tuple[tuple[int, int], ...]
    remaps: bool
    at_once: bool

    @classmethod
    def of(cls, move: Move) -> _NewMove:
        return cls(*move[:4], move.remaps, move.at_once)

    def move(self) -> Move:
        return Move(self.epoch, self.source, self.target, self.ranges, remaps=self.remaps, at_once=self.at_once)


class _Moves(msgspec.Struct):
    topic_id: str
    moves: tuple[_NewMove, ...]

    @classmethod
    def of(cls, event: KeysMoved) -> _Moves:
        return cls(event.topic_id, tuple(map(_NewMove.of, event.moves)))

    def event(self) -> KeysMoved:
        return KeysMoved(topic_id=self.topic_id, moves=tuple(move.move() for move in self.moves))


#: The stored form of each kind of event.
MOVE_EVENTS: Final[Mapping[str, Form[Any]]] = {
    KeysMoved.kind: form(_Moves, _Moves.event, _Moves.of),
    **forms_of(MoveSealed),
}


#: The index of messages without a key in `Blocked`: the last one.
_KEYLESS: Final = -1


# Without slots, because `cached_property` needs an instance dictionary.
class MovedKeys(msgspec.Struct, frozen=True, dict=True):
    """All moves of one life of a topic, in the order of their epochs. Immutable: `apply_all` returns the next one."""

    moves: tuple[Move, ...] = ()

    def apply_all(self, events: Iterable[MoveEvent]) -> MovedKeys:
        """Return the moves after `events` of this life of the topic."""
        moves = list(self.moves)
        for event in events:
            if isinstance(event, KeysMoved):
                newer = not moves or all(move.epoch > moves[-1].epoch for move in event.moves)
                check_event(newer and all(move.end_offset is None for move in event.moves), "a", event.kind, "event")
                moves += event.moves
                continue
            places = [at for at, move in enumerate(moves) if (move.epoch, move.source) == (event.epoch, event.source)]
            check_event(bool(places), "a", event.kind, "event")
            for at in places:
                check_event(moves[at].end_offset in (None, event.end_offset), "a", event.kind, "event")
                moves[at] = moves[at]._replace(end_offset=event.end_offset)
        return replace(self, moves=tuple(moves))

    @cached_property
    def _into(self) -> Mapping[str, tuple[Move, ...]]:
        """The moves to each partition, which all came when it was made: none gets LPs later."""
        by_target: dict[str, list[Move]] = {}
        for move in self.moves:
            by_target.setdefault(move.target, []).append(move)
        return {target: tuple(moves) for target, moves in by_target.items()}

    @cached_property
    def handovers(self) -> tuple[Handover, ...]:
        """The remappings of logical queues, each with the end of the old leader."""
        return tuple(
            Handover(move.source, move.target, move.end_offset, jumps=move.at_once)
            for move in self.moves
            if move.remaps
        )

    @cached_property
    def _held(self) -> tuple[Move, ...]:
        """The moves whose messages still go to the old partition."""
        return tuple(move for move in self.moves if move.end_offset is None and not move.at_once)

    @cached_property
    def ahead(self) -> Mapping[str, str]:
        """The old partition of each new one that gets messages before the old one is sealed."""
        return {move.target: move.source for move in self.moves if move.end_offset is None and move.at_once}

    @cached_property
    def behind(self) -> Mapping[str, str]:
        """The old leader of each logical queue's leader that gets no messages before the old one is sealed."""
        return {move.target: move.source for move in self._held if move.remaps}

    @cached_property
    def waiting(self) -> frozenset[str]:
        """The partitions with moves that wait for a seal."""
        return frozenset(move.source for move in self.moves if move.end_offset is None)

    @cached_property
    def _by_source(self) -> Mapping[str, tuple[Move, ...]]:
        """The moves from each partition, in the order of their epochs; a remapping moves a thousand queues at once."""
        by_source: dict[str, list[Move]] = {}
        for move in self.moves:
            by_source.setdefault(move.source, []).append(move)
        return {source: tuple(moves) for source, moves in by_source.items()}

    def unsealed(self, source: str) -> tuple[int, ...]:
        """Return the epochs of moves that wait for the broker of `source` to seal them, oldest first."""
        return tuple(sorted({move.epoch for move in self._by_source.get(source, ()) if move.end_offset is None}))

    def sealed_up_to(self, source: str) -> int:
        """Return the epoch of the last move from `source` up to which all are sealed; 0 for none.

        A writer that appends to `source` by `table` knows the fences up to this one (see `tables.log.fences`).
        """
        epochs = {move.epoch for move in self._by_source.get(source, ())}
        waiting = self.unsealed(source)
        return max((epoch for epoch in epochs if not waiting or epoch < waiting[0]), default=0)

    def table(self, route: Route) -> Table:
        """Return for each LP the index of the partition that its messages go to now: the route's, or the old one's.

        An LP is where the moves before its first unsealed one have brought it; moves that are `at_once` do not wait.
        """
        if not self._held:
            return route.table
        table = route.table.copy()
        for move in reversed(self._held):
            for low, high in move.ranges:
                table[low:high] = route.index_of[move.source]
        table.flags.writeable = False
        return table

    def without(self, partitions: frozenset[str]) -> MovedKeys:
        """Return the moves except from dropped partitions."""
        return MovedKeys(tuple(move for move in self.moves if move.source not in partitions))

    def sources(self, target: str) -> set[str]:
        """Return the partitions whose progress may decide which messages of `target` a group may read."""
        sources: set[str] = set()
        left = [target]
        while left:
            new = {move.source for move in self._into.get(left.pop(), ())} - sources
            sources |= new
            left += new
        return sources

    def blocked(self, target: str, positions: Mapping[str, int]) -> Blocked | None:
        """Return the LPs whose messages in `target` a group may not read yet; None when there are none.

        `positions` are the offsets of the next messages that the group must finish in each of `sources(target)`: the
        greatest of its committed offset, the offset where it would begin, and the minimum offset.
        """
        asking = self.inquire(target)
        try:
            move = next(asking)
            while True:
                move = asking.send(move.end_offset is not None and positions[move.source] >= move.end_offset)
        except StopIteration as end:
            blocked: Blocked | None = end.value
            return blocked

    def inquire(self, target: str, passed: Collection[str] = ()) -> Generator[Move, bool, Blocked | None]:
        """Ask about sealed moves, the newest on the way first; return the LPs that a group may not read in `target`.

        The answer to a move is whether the group has consumed its source up to its end. The way of an LP is followed
        back only as far as the answers let it pass: behind a remapping, which moves a whole queue, nothing is asked
        about the earlier segments of a group that is not done with the last one.

        `passed` are partitions for which this returned None for the group before. A group's progress only grows, and a
        partition gets no further moves, so they stay passed until a reset, and earlier partitions are not asked about
        again: the way through a hundred segments is not followed at each of them.
        """
        if target in passed or target not in self._into:
            return None
        blocked = np.zeros(LOGICAL_PARTITIONS + 1, dtype=np.bool_)
        left = [(target, np.ones(LOGICAL_PARTITIONS + 1, dtype=np.bool_))]
        while left:
            partition, reached = left.pop()
            for move in self._into.get(partition, ()):
                lps = reached & _moved_by(move)
                if not lps.any():
                    continue
                if move.end_offset is None or not (yield move):
                    blocked |= lps
                elif move.source not in passed:
                    left.append((move.source, lps))
        return blocked if blocked.any() else None


def _moved_by(move: Move) -> Blocked:
    """Return which messages a move concerns: all of its LPs, or, for a remapping, all of the queue.

    A queue may have messages of any LP: producers may name a queue for a key (SPEC SEND-1).
    """
    if move.remaps:
        return np.ones(LOGICAL_PARTITIONS + 1, dtype=np.bool_)
    lps = np.zeros(LOGICAL_PARTITIONS + 1, dtype=np.bool_)
    for low, high in move.ranges:
        lps[low:high] = True
    return lps


def first_blocked(blocked: Blocked | None, lps: NDArray[np.int16]) -> int:
    """Return how many messages of a batch a group may read: the ones before the first that must wait.

    `lps` are the LPs of the messages' keys, -1 for messages without a key, which wait only behind a remapping.
    """
    if blocked is None:
        return int(lps.size)
    stops = np.flatnonzero(blocked[lps])
    return int(stops[0]) if stops.size else int(lps.size)


def decide_seal(
    moved: MovedKeys, topic_id: str, source: str, epoch: int, end_offset: int, now_ms: int = 0
) -> tuple[MoveEvent, ...]:
    """Return the event that seals the moves from `source` of one expansion; none when they are sealed already.

    The broker of `source` has stopped appending messages of these LPs. With a commit of its own in that partition, it
    has made sure that no append of a previous broker can still arrive: `end_offset` is the end after that commit.
    """
    if epoch not in moved.unsealed(source):
        return ()
    return (MoveSealed(topic_id=topic_id, epoch=epoch, source=source, end_offset=end_offset, at_ms=now_ms),)
