"""The rules of groups that pop (README.md), with bounds so conservative that none can cry wolf.

A lease begins between the call and the answer of its pop. So it certainly lasts from the answer until the call plus the
invisible time, unless somebody who had the receipt did something with it, whatever came of that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Final

import msgspec

from tests.history.checker.anomalies import Findings
from tests.history.checker.log_rules import RETRY, Log
from tests.history.checker.ops import FOREVER, Delivered, GroupRules, History, Outcome, Pop, Settle

__all__ = ["Queue", "check_queue"]

#: Faults after which a service has forgotten what was only in its memory.
FORGETTING: Final = ("kill", "stop", "pause", "clock", "partition")
#: The same for groups in order: all that they are told is stored before, so that only a clock can end a lease early.
_FORGETTING_IN_ORDER: Final = ("clock",)
_EXPIRED: Final = "handle_expired"
_UNKNOWN: Final = "outcome_unknown"


class _Given(msgspec.Struct, frozen=True):
    """One delivery, by one pop."""

    pop: Pop
    message: Delivered

    @property
    def certain_until(self) -> int:
        """Nobody else may have it before this moment, unless it was settled."""
        return self.pop.begun + self.pop.invisible


class Queue(msgspec.Struct):
    """What one group did."""

    rules: GroupRules
    #: By message, in order of their answers.
    given: dict[str, list[_Given]] = msgspec.field(default_factory=lambda: defaultdict(list))
    #: What was done with a receipt, or with one that it was renewed to.
    settled: dict[str, list[Settle]] = msgspec.field(default_factory=lambda: defaultdict(list))
    #: The receipt of the delivery that a renewed one goes back to.
    first: dict[str, str] = msgspec.field(default_factory=dict)
    #: Messages whose acknowledgement was answered, may have been stored, or was tried, with its first moment.
    acked: dict[str, int] = msgspec.field(default_factory=dict)
    tried: dict[str, int] = msgspec.field(default_factory=dict)
    dead: dict[str, list[tuple[int, str]]] = msgspec.field(default_factory=lambda: defaultdict(list))
    condemned: set[str] = msgspec.field(default_factory=set)
    #: When services forgot what was in their memory.
    forgot: list[tuple[int, int]] = msgspec.field(default_factory=list)

    @staticmethod
    def of(history: History, rules: GroupRules) -> Queue:
        """Add a group's part of a history up."""
        queue = Queue(rules)
        pops = [pop for pop in history.pops if pop.group == rules.group and pop.ok]
        owner: dict[str, str] = {}
        #: The moment at which a receipt was certainly over.
        over: dict[str, int] = {}
        for pop in sorted(pops, key=lambda pop: pop.ended):
            for message in pop.deliveries:
                queue.given[message.id].append(_Given(pop, message))
                owner[message.receipt] = message.id
                over[message.receipt] = pop.ended + pop.invisible
        settles = [settle for settle in history.settles if settle.group == rules.group]
        for settle in settles:
            if settle.renewed is not None:
                receipt = settle.receipts[0]
                queue.first[settle.renewed] = queue.first.get(receipt, receipt)
                over[settle.renewed] = settle.ended + settle.invisible
        for settle in settles:
            for receipt in settle.receipts:
                first = queue.first.get(receipt, receipt)
                queue.settled[first].append(settle)
                if first in owner:
                    queue._note(settle, receipt, owner[first], in_time=settle.begun <= over.get(receipt, FOREVER))
        for letters in history.dead:
            for id_, attempts, reason in letters.letters if letters.group == rules.group else ():
                queue.dead[id_].append((attempts, reason))
        if not rules.durable:
            kinds = _FORGETTING_IN_ORDER if rules.order else FORGETTING
            queue.forgot = sorted((f.begun, f.ended) for f in history.faults if f.kind in kinds)
        return queue

    def _note(self, settle: Settle, receipt: str, id_: str, *, in_time: bool) -> None:
        """What became of a message. "Expired" is certain only for what was sent when the time was over.

        An acknowledgement that was sent in time and took too long to store is called expired, and may have been stored.
        """
        result = settle.results.get(receipt)
        if settle.kind == "dead":
            self.condemned.add(id_)
        elif settle.kind != "ack" or settle.outcome is Outcome.FAIL:
            return
        elif result == "ok":
            self.acked[id_] = min(self.acked.get(id_, FOREVER), settle.ended)
            self.tried[id_] = min(self.tried.get(id_, FOREVER), settle.begun)
        elif settle.outcome is Outcome.INFO or result == _UNKNOWN or (result == _EXPIRED and in_time):
            self.tried[id_] = min(self.tried.get(id_, FOREVER), settle.begun)

    def forgot_between(self, begun: int, ended: int) -> bool:
        """Whether a service may have forgotten in `[begun, ended]` what it had answered before."""
        return any(start <= ended and end >= begun for start, end in self.forgot)

    def may_be_over(self, given: _Given, by: _Given, slack: int) -> bool:
        """Whether a delivery may have been over when the other one was made."""
        settles = [one for one in self.settled.get(given.message.receipt, ()) if one.begun < by.pop.ended]
        if not settles:
            return by.pop.ended + slack >= given.certain_until
        last = max(settles, key=lambda one: one.begun)
        is_renewed = last.kind == "extend" and last.renewed is not None and last.ended < by.pop.begun
        return not is_renewed or by.pop.ended + slack >= last.begun + last.invisible


def check_queue(history: History, log: Log, found: Findings) -> None:
    """All rules of this module, for each group that pops."""
    for rules in history.groups.values():
        if rules.exclusive:
            continue
        queue = Queue.of(history, rules)
        for givens in queue.given.values():
            _leases(queue, givens, history.slack, found)
            _attempts(queue, givens, found)
        _after_acks(queue, found)
        _receipts(history, queue, found)
        _early(queue, log, history.slack, found)
        _letters(queue, found)
        _ends(history, queue, found)
        if rules.order:
            _order(queue, log, found)


def _leases(queue: Queue, givens: Sequence[_Given], slack: int, found: Findings) -> None:
    """`double-lease`: two deliveries of one message of which neither can have been over when the other began."""
    for one, other in combinations(givens, 2):
        if _may_follow(queue, one, other, slack) or _may_follow(queue, other, one, slack):
            continue
        if queue.forgot_between(min(one.pop.begun, other.pop.begun), max(one.pop.ended, other.pop.ended)):
            continue
        said = f"group {queue.rules.group}: given to {one.pop.process} and {other.pop.process} at once"
        found.add("double-lease", one.message.id, said, other.pop.begun)


def _may_follow(queue: Queue, before: _Given, after: _Given, slack: int) -> bool:
    """Whether `after` may have been given when `before` was over."""
    if before.pop.begun > after.pop.ended:
        return False
    return queue.may_be_over(before, after, slack)


def _attempts(queue: Queue, givens: Sequence[_Given], found: Findings) -> None:
    """`attempt-not-increasing`, `too-many-attempts`; redeliveries are counted."""
    most = queue.rules.max_attempts
    for given in givens:
        if given.message.attempt > most:
            found.add("too-many-attempts", given.message.id, f"attempt {given.message.attempt}", given.pop.ended)
    forgotten = 0
    for before, after in pairwise(givens):
        forgot = queue.forgot_between(before.pop.begun, after.pop.ended)
        forgotten += forgot
        found.allow("redelivered-after-crash" if forgot else "redelivered-after-expiry")
        if before.pop.ended < after.pop.begun and after.message.attempt <= before.message.attempt and not forgot:
            said = f"group {queue.rules.group}: attempt {after.message.attempt} after {before.message.attempt}"
            found.add("attempt-not-increasing", after.message.id, said, after.pop.begun)
    if len(givens) - forgotten > most:
        found.add("too-many-attempts", givens[0].message.id, f"{len(givens)} deliveries", givens[-1].pop.ended)


def _after_acks(queue: Queue, found: Findings) -> None:
    """`redelivered-after-ack`: called for after the acknowledgement was answered."""
    for id_, moment in queue.acked.items():
        for given in queue.given.get(id_, ()):
            if given.pop.begun > moment and not queue.forgot_between(queue.tried[id_], given.pop.ended):
                said = f"group {queue.rules.group}: {(given.pop.begun - moment) / 1e6:.1f} ms after its ack"
                found.add("redelivered-after-ack", id_, said, given.pop.begun)
                break


def _receipts(history: History, queue: Queue, found: Findings) -> None:
    """`stale-ack-accepted` and `ack-unknown-receipt`."""
    owner = {given.message.receipt: given for givens in queue.given.values() for given in givens}
    for settle in history.settles:
        if settle.group != queue.rules.group or settle.kind != "ack" or not settle.ok:
            continue
        for receipt in settle.receipts:
            if settle.results.get(receipt) != "ok":
                continue
            given = owner.get(queue.first.get(receipt, receipt))
            if given is None:
                found.add("ack-unknown-receipt", receipt[:40], f"group {queue.rules.group}", settle.begun)
                continue
            if _is_stale(queue, given, settle):
                said = f"group {queue.rules.group}: attempt {given.message.attempt} was not the newest"
                found.add("stale-ack-accepted", given.message.id, said, settle.begun)


def _is_stale(queue: Queue, given: _Given, settle: Settle) -> bool:
    givens = queue.given[given.message.id]
    return any(
        later.pop.begun > given.pop.ended
        and later.pop.ended < settle.begun
        and later.message.receipt != given.message.receipt
        and not queue.forgot_between(given.pop.begun, settle.ended)
        for later in givens
    )


def _early(queue: Queue, log: Log, slack: int, found: Findings) -> None:
    """`early-delivery`: a delayed message before its time."""
    for id_, givens in queue.given.items():
        writer = log.writer.get(id_)
        if writer is None or writer.due is None:
            continue
        if givens[0].pop.ended < writer.due - slack:
            early_ms = (writer.due - givens[0].pop.ended) / 1e6
            found.add("early-delivery", id_, f"group {queue.rules.group}: {early_ms:.1f} ms", givens[0].pop.ended)


def _letters(queue: Queue, found: Findings) -> None:
    """`dead-twice`, `dead-too-soon`, `acked-and-dead`."""
    for id_, letters in queue.dead.items():
        where = f"group {queue.rules.group}"
        if len(letters) > 1:
            found.add("dead-twice", id_, f"{where}: {letters}")
        attempts, reason = letters[0]
        if attempts < queue.rules.max_attempts and id_ not in queue.condemned:
            found.add("dead-too-soon", id_, f"{where}: after {attempts} attempts, {reason}")
        moment = queue.acked.get(id_)
        if moment is not None and not queue.forgot_between(queue.tried[id_], FOREVER):
            found.add("acked-and-dead", id_, where, moment)


def _ends(history: History, queue: Queue, found: Findings) -> None:
    """`queue-lost` and `stuck`: at the end, each message is acknowledged or dead."""
    drained = [one for one in history.drained if one.group == queue.rules.group]
    if not drained:
        return
    if not drained[-1].ok:
        found.add("stuck", f"group {queue.rules.group}", "messages kept coming, or did not come, until the end")
        return
    for send in history.sends:
        if not send.ok or send.topic not in queue.rules.topics:
            continue
        for id_ in send.ids:
            if id_ in queue.tried and id_ not in queue.acked and id_ not in queue.dead:
                found.allow("unanswered-ack-counted")
            elif id_ not in queue.tried and id_ not in queue.dead:
                times = len(queue.given.get(id_, ()))
                said = f"group {queue.rules.group}: given {times} times, neither acknowledged nor dead"
                found.add("queue-lost", id_, said, send.ended)


def _order(queue: Queue, log: Log, found: Findings) -> None:
    """`order-break`: given while one that comes before it in its key (or partition) was neither done nor dead."""
    for lane in _lanes(queue, log):
        ids = [id_ for _, id_ in lane]
        for before, after in pairwise(id_ for id_ in ids if id_ not in queue.dead):
            done = queue.tried.get(before, FOREVER)
            for given in queue.given.get(after, ()):
                if given.pop.ended < done and not _comes_first(before, after, given.pop):
                    said = f"group {queue.rules.group}: {before} was not done"
                    found.add("order-break", after, said, given.pop.ended)
                    break


def _comes_first(before: str, after: str, pop: Pop) -> bool:
    """Whether one pop gave both, in this order."""
    ids = [one.id for one in pop.deliveries]
    return before in ids and ids.index(before) < ids.index(after)


def _lanes(queue: Queue, log: Log) -> list[list[tuple[int, str]]]:
    """The messages that must follow each other, by offset."""
    lanes: dict[tuple[str, str | None], list[tuple[int, str]]] = defaultdict(list)
    for id_, givens in queue.given.items():
        places = sorted(log.places.get(id_, ()))
        if not places or places[0].partition.startswith(RETRY):
            continue
        key = givens[0].message.key if queue.rules.order == "key" else None
        if queue.rules.order == "key" and key is None:
            continue
        lanes[places[0].partition, key].append((places[0].offset, id_))
    return [sorted(lane) for lane in lanes.values()]
