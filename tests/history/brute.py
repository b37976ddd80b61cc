"""The same rules, written a second time without any cleverness: every pair is looked at (README.md).

Only for small histories: what it finds is compared with what the checker finds. The sweeps, bisections and folds of the
checker are where it may be wrong; this says the rules as README.md does.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.history.checker.ops import Delivered, GroupRules, Handled, History, Outcome, Pop, Settle

__all__ = ["brute"]


def brute(history: History) -> set[tuple[str, str]]:
    """What is wrong, as pairs of a name and a message or place."""
    found: set[tuple[str, str]] = set()
    for rule in (_realtime, _sequences, _writes, _polls, _ends):
        found |= set(rule(history))
    for group in history.groups.values():
        if group.exclusive:
            found |= {*_two_consumers(history, group), *_key_order(history, group)}
        else:
            found |= {*_leases(history, group), *_after_acks(history, group), *_stale_acks(history, group)}
    return found


def _realtime(history: History) -> Iterator[tuple[str, str]]:
    placed = [(one, place) for one in history.sends for place in one.placed]
    for one, place in placed:
        earlier = [
            other.process
            for other, before in placed
            if before.partition == place.partition and other.ended < one.begun and before.offset >= place.offset
        ]
        if one.process in earlier:
            yield "nonmonotonic-send", f"{place.partition}/{place.offset}"
        elif earlier:
            yield "realtime-order", f"{place.partition}/{place.offset}"


def _sequences(history: History) -> Iterator[tuple[str, str]]:
    """For sends of one message each."""
    seen = {(place.partition, place.offset, one.ids[0]) for one in history.sends for place in one.placed}
    for source in (history.polls, history.scans):
        seen |= {(poll.partition, read.offset, read.id) for poll in source for read in poll.reads}
    seen |= {(one.partition, one.offset, one.id) for pop in history.pops for one in pop.deliveries}
    first = [
        place
        for place in seen
        if not any(other[0] == place[0] and other[1] < place[1] and other[2] == place[2] for other in seen)
    ]
    counted = {one.ids[0]: (one.process, one.number) for one in history.sends if one.number is not None}
    for partition, offset, id_ in first:
        if id_ in counted and any(
            other in counted
            and (where, counted[other][0]) == (partition, counted[id_][0])
            and before < offset
            and counted[other][1] > counted[id_][1]
            for where, before, other in first
        ):
            yield "out-of-sequence", f"{partition}/{offset}"


def _writes(history: History) -> Iterator[tuple[str, str]]:
    seen = [
        (poll.partition, read) for source in (history.polls, history.scans) for poll in source for read in poll.reads
    ]
    for one in history.sends:
        for id_, place in zip(one.ids, one.placed, strict=False):
            if not one.ok or any(read.id == id_ for _, read in seen):
                continue
            is_below = any(partition == place.partition and read.offset >= place.offset for partition, read in seen)
            yield "lost-write" if is_below else "unseen", id_


def _polls(history: History) -> Iterator[tuple[str, str]]:
    exist = {(place.partition, place.offset) for one in history.sends for place in one.placed}
    for source in (history.polls, history.scans):
        exist |= {(poll.partition, read.offset) for poll in source for read in poll.reads}
    exist |= {(one.partition, one.offset) for pop in history.pops for one in pop.deliveries}
    for poll in history.polls:
        for at, read in enumerate(poll.reads):
            last = poll.reads[at - 1].offset if at else _position(history, poll.process, poll.partition, poll.begun)
            if last is None:
                continue
            prefix, where = "int-" if at else "", f"{poll.partition}/{read.offset}"
            if read.offset <= last:
                yield f"{prefix}nonmonotonic-poll", where
            elif any((poll.partition, offset) in exist for offset in range(last + 1, read.offset)):
                yield f"{prefix}poll-skip", where


def _position(history: History, process: int, partition: str, moment: int) -> int | None:
    """Where a reader was: its newest read or assignment before that moment."""
    told = [
        (one.begun, one.offset - 1)
        for one in history.assigns
        if (one.process, one.partition) == (process, partition) and one.begun < moment
    ]
    told += [
        (one.begun, one.reads[-1].offset)
        for one in history.polls
        if (one.process, one.partition) == (process, partition) and one.begun < moment and one.reads
    ]
    return max(told)[1] if told else None


def _ends(history: History) -> Iterator[tuple[str, str]]:
    for end in history.ends:
        before = [one.offset for one in history.ends if one.partition == end.partition and one.ended < end.begun]
        before += [
            read.offset + 1
            for poll in history.polls
            for read in poll.reads
            if poll.partition == end.partition and poll.ended < end.begun
        ]
        if any(offset > end.offset for offset in before):
            yield "end-regression", end.partition


def _given(history: History, group: GroupRules) -> list[tuple[Pop, Delivered]]:
    return [(pop, one) for pop in history.pops if pop.group == group.group and pop.ok for one in pop.deliveries]


def _settles(history: History, group: GroupRules, receipt: str) -> list[Settle]:
    return [one for one in history.settles if one.group == group.group and receipt in one.receipts]


def _leases(history: History, group: GroupRules) -> Iterator[tuple[str, str]]:
    """For histories without renewals."""
    given = _given(history, group)

    def may_follow(before: tuple[Pop, Delivered], after: tuple[Pop, Delivered]) -> bool:
        (first, message), (second, _) = before, after
        if first.begun > second.ended:
            return False
        settled = any(one.begun < second.ended for one in _settles(history, group, message.receipt))
        return settled or second.ended + history.slack >= first.begun + first.invisible

    for at, one in enumerate(given):
        for other in given[at + 1 :]:
            if one[1].id == other[1].id and not may_follow(one, other) and not may_follow(other, one):
                yield "double-lease", one[1].id


def _after_acks(history: History, group: GroupRules) -> Iterator[tuple[str, str]]:
    given = _given(history, group)
    for _, message in given:
        for ack in _settles(history, group, message.receipt):
            if ack.kind != "ack" or not ack.ok or ack.results.get(message.receipt) != "ok":
                continue
            if any(other.id == message.id and pop.begun > ack.ended for pop, other in given):
                yield "redelivered-after-ack", message.id


def _stale_acks(history: History, group: GroupRules) -> Iterator[tuple[str, str]]:
    given = _given(history, group)
    for pop, message in given:
        for ack in _settles(history, group, message.receipt):
            if ack.kind != "ack" or ack.results.get(message.receipt) != "ok":
                continue
            if any(
                newer.id == message.id and later.begun > pop.ended and later.ended < ack.begun for later, newer in given
            ):
                yield "stale-ack-accepted", message.id


def _two_consumers(history: History, group: GroupRules) -> Iterator[tuple[str, str]]:
    """For histories without faults of clients."""
    handled = [one for one in history.handled if one.group == group.group]
    turns = sorted(handled, key=lambda one: (one.begun, one.ended))
    for place, one in enumerate(turns):
        for other in turns[:place]:
            if one.partition == other.partition and other.ended > one.begun:
                yield "two-consumers", f"{one.partition}/{one.offset}"


def _key_order(history: History, group: GroupRules) -> Iterator[tuple[str, str]]:
    """For sends of one message each that do not overlap in a key."""
    handled = [one for one in history.handled if one.group == group.group]
    sent = [one for one in history.sends if one.ok and one.outcome is Outcome.OK]

    def is_done(id_: str, moment: int) -> bool:
        return any(one.id == id_ and one.ok and one.ended <= moment for one in handled)

    for after in sent:
        begun = [one for one in handled if one.id == after.ids[0]]
        if not begun:
            continue
        first: Handled = min(begun, key=lambda one: one.begun)
        earlier = [one for one in sent if one.keys == after.keys and one.ended < after.begun]
        newest = max(earlier, key=lambda one: one.begun, default=None)
        if newest is not None and not is_done(newest.ids[0], first.begun):
            yield "key-order", after.ids[0]
