"""The rules of exclusive groups (SPEC ORDER): one client for a partition, each message once, keys in their order.

A client that is killed, stopped or cut off cannot keep a promise that needs it: what overlaps such a fault of the
client itself is allowed. Faults of services excuse nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from tests.history.checker.anomalies import Findings
from tests.history.checker.ops import FOREVER, MS, GroupRules, Handled, History, Send

__all__ = ["check_order"]

#: A client that was stopped goes on within this time; a busy machine wakes it late.
_WAKING: Final = 500 * MS


def check_order(history: History, found: Findings) -> None:
    """All rules of this module, for each exclusive group."""
    chains = _chains(history)
    for rules in history.groups.values():
        if not rules.exclusive:
            continue
        handled = [one for one in history.handled if one.group == rules.group]
        dead = {id_ for one in history.dead if one.group == rules.group for id_, *_ in one.letters}
        excuses = _Excuses(history, rules)
        _owners(handled, excuses, found)
        _once(handled, excuses, found)
        _keys(handled, chains, dead, found)
        _all(history, rules, handled, dead, found)


class _Excuses:
    """When clients were hurt themselves, or said that they had lost their right."""

    def __init__(self, history: History, rules: GroupRules) -> None:
        self._hurt: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for fault in history.faults:
            self._hurt[fault.target].append((fault.begun, fault.ended))
        self._lost: dict[tuple[str, str], list[int]] = defaultdict(list)
        for lost in history.lost:
            if lost.group == rules.group:
                self._lost[lost.client, lost.partition].append(lost.ended)

    def hurt(self, client: str, begun: int, ended: int) -> bool:
        """Whether the client itself was killed, stopped or cut off in that time, or right before it.

        One that is stopped between its look at its right and the listener begins with the message when it wakes up.
        """
        return any(start <= ended and end + _WAKING >= begun for start, end in self._hurt.get(client, ()))

    def lost(self, client: str, partition: str, begun: int, ended: int) -> bool:
        """Whether the client said in that time that its right was over."""
        times = sorted(self._lost.get((client, partition), ()))
        at = bisect_left(times, begun)
        return at < len(times) and times[at] <= ended


def _owners(handled: Sequence[Handled], excuses: _Excuses, found: Findings) -> None:
    """`two-consumers`: two listeners ran in one partition at the same time, of two clients or of one."""
    lanes: dict[str, list[Handled]] = defaultdict(list)
    for one in handled:
        lanes[one.partition].append(one)
    for partition, ones in lanes.items():
        active: list[Handled] = []
        # Of two that began together, one that took no time was over before the other.
        for one in sorted(ones, key=lambda one: (one.begun, one.ended)):
            active = [other for other in active if other.ended > one.begun]
            for other in list(active):
                if excuses.hurt(other.client, other.begun, min(other.ended, one.ended)):
                    active.remove(other)
                elif not excuses.hurt(one.client, one.begun, one.begun):
                    said = f"{other.client} had {other.id} when {one.client} began {one.id}"
                    found.add("two-consumers", f"{partition}/{one.offset}", said, one.begun)
            active.append(one)


def _once(handled: Sequence[Handled], excuses: _Excuses, found: Findings) -> None:
    """`processed-twice`: done, and begun again, though its client was well and had not lost its right."""
    by_id: dict[str, list[Handled]] = defaultdict(list)
    for one in handled:
        by_id[one.id].append(one)
    for id_, ones in by_id.items():
        done = [one for one in sorted(ones, key=lambda one: one.begun) if one.ok]
        for before, after in pairwise(done):
            client, partition = before.client, before.partition
            if (
                excuses.hurt(client, before.begun, after.begun)
                or excuses.hurt(after.client, after.begun, after.begun)
                or excuses.lost(client, partition, before.begun, after.ended)
            ):
                found.allow("processed-again-after-loss")
            else:
                found.add("processed-twice", id_, f"by {client}, then by {after.client}", after.begun)


def _chains(history: History) -> list[list[str]]:
    """For each key of each topic, its messages in the order in which they were certainly sent.

    A send whose end nobody knows comes neither before nor after anything; nor does one that overlaps the one before it.
    """
    keys: dict[tuple[str, str], list[tuple[Send, list[str]]]] = defaultdict(list)
    for send in history.sends:
        if not send.ok or send.due is not None:
            continue
        by_key: dict[str, list[str]] = defaultdict(list)
        for id_, key in zip(send.ids, send.keys, strict=True):
            if key is not None:
                by_key[key].append(id_)
        for key, ids in by_key.items():
            keys[send.topic, key].append((send, ids))
    return [chain for sends in keys.values() for chain in _unbroken(sends) if len(chain) > 1]


def _unbroken(sends: list[tuple[Send, list[str]]]) -> Iterator[list[str]]:
    chain: list[str] = []
    last_end = -1
    for send, ids in sorted(sends, key=lambda one: one[0].begun):
        if send.begun <= last_end:
            yield chain
            chain = []
        chain += ids
        last_end = max(last_end, send.ended)
    yield chain


def _keys(handled: Sequence[Handled], chains: list[list[str]], dead: set[str], found: Findings) -> None:
    """`key-order`: a listener got a message whose predecessor of the same key nobody had finished."""
    finished: dict[str, int] = {}
    for one in handled:
        if one.ok:
            finished[one.id] = min(finished.get(one.id, FOREVER), one.ended)
    begun: dict[str, Handled] = {}
    for one in handled:
        if one.id not in begun or one.begun < begun[one.id].begun:
            begun[one.id] = one
    for chain in chains:
        for before, after in pairwise(id_ for id_ in chain if id_ not in dead):
            first = begun.get(after)
            if first is not None and finished.get(before, FOREVER) > first.begun:
                said = f"{first.client} got it before {before} was finished"
                found.add("key-order", f"{first.partition}/{first.offset} {after}", said, first.begun)


def _all(history: History, rules: GroupRules, handled: Sequence[Handled], dead: set[str], found: Findings) -> None:
    """`unprocessed` and `stuck`: at the end every message was handled, or is dead."""
    drained = [one for one in history.drained if one.group == rules.group]
    if not drained:
        return
    if not drained[-1].ok:
        found.add("stuck", f"group {rules.group}", "its clients did not come to the end")
        return
    done = {one.id for one in handled if one.ok}
    for send in history.sends:
        if send.ok and send.topic in rules.topics:
            for id_ in send.ids:
                if id_ not in done and id_ not in dead:
                    found.add("unprocessed", id_, f"group {rules.group}", send.ended)
