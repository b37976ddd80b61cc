"""Pull locks: one client at a time pulls and commits a partition for an exclusive group (SPEC ORDER-4, ORDER-5).

The allocation names the client that should have a partition, the lock names the client that has it. A hands over to B:

    A   pull  pull |allocated to B|  finish, commit, release
    B                     take: refused ...                  take: granted, start at A's committed offset

Only the owner by the allocation may take a free lock. A holder that is no longer the owner may renew and commit, but
not pull, until it releases the lock. A lock is free when it was released, when it was not renewed for 60 s, or when its
holder's stay has ended (`mq.meta.online.ClientGone`): then the holder's authorization is over, so it has stopped.

Locks are only in the memory of the broker, and a crash loses them. That is safe:

- A holder that gets no answer regards its lock as lost after 25 s (`ClientLock`). A broker that was taken over grants a
  lock only after 26 s if a client other than the owner may still hold it: one of `Seat.earlier`, which had the
  partition before, is still known, and joined before the takeover. Once the broker has granted a lock itself, it need
  not wait.
- Meanwhile a holder *claims* its lock (`held`), so a run in progress goes on. No other client can have the lock: the
  previous broker renewed it for one client only, and no longer serves.

The lock of a logical queue is at the broker of its leader. A remapping between brokers of one process takes it along
(`receive`). At another process, the broker knows nothing of the queue's locks, as if it had been taken over just then
(`arrive`). When it matters, it asks the previous broker's process what it knows of the lock (`account`, `adopt`).
That process refuses as soon as it knows of the remapping, and it knows before it answers. If it does not answer, it may
still renew the lock, so a contested one waits for that time, too.

A client repeats a release until it is answered (else the next owner waits for the expiry), and does not ask for that
partition meanwhile. So a client that goes without a release has died, or has lost the lock. The message that it was
processing may be the cause, and counts as tried (`is_abandoned`, SPEC ORDER-8).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from deltamq.mq.errors import Conflict
from deltamq.mq.limits import PULL_LOCK_LOST_MS, PULL_LOCK_MS, PULL_LOCK_RENEW_MS, PULL_LOCK_SETTLE_MS
from deltamq.mq.meta.online import Seat
from deltamq.mq.queue.checkpoint import LaneKey


class _Arrival(NamedTuple):
    """When a broker, or one queue there, came to this process; see `PullLocks.__init__` and `arrive`."""

    settled_ms: int
    online_epoch: int
    #: The broker whose process may know of the locks of a queue that came from there.
    previous: str | None = None


class LockHolder(msgspec.Struct, frozen=True):
    """The client that has a lock, the stay in which it joined, and how long ago the lock was renewed."""

    client: str
    joined: int
    number: int
    renewed_ms_ago: int


class LockAccount(msgspec.Struct, frozen=True):
    """What a broker knows of one lock, for the broker to which a logical queue went."""

    #: None if no client has the lock, as far as this broker knows.
    holder: LockHolder | None
    #: For how long another client may still have it, from before the queue came to this broker.
    settles_in_ms: int
    online_epoch: int
    #: As in `PullLocks`: locks were granted here, are void, or were abandoned.
    given: bool
    void: bool
    abandoned: bool


class _Lock(msgspec.Struct):
    """A lock that was granted; `joined` identifies the stay of its holder."""

    client: str
    joined: int
    number: int
    renewed_ms: int


class PullLocks:
    """The pull locks of one broker in one epoch, on its host's clock. In memory only; not safe for threads.

    Call it only while the host's own lease holds, and check the lease again before an answer leaves.
    """

    __slots__ = ("_abandoned", "_arrivals", "_given", "_locks", "_next_number", "_reported", "_taken", "_void")

    def __init__(self, taken_ms: int, *, epoch: int, online_epoch: int) -> None:
        """Begin at `taken_ms`, when the broker was taken in `epoch`; lock numbers exceed all of earlier epochs.

        `online_epoch` is `mq.meta.online.OnlineState.epoch` at that time, or later.
        """
        self._taken = _Arrival(taken_ms + PULL_LOCK_SETTLE_MS, online_epoch)
        #: Queues that came to the broker later, by topic id and name.
        self._arrivals: dict[tuple[str, str], _Arrival] = {}
        #: Lanes of such queues whose locks the previous broker's process has reported.
        self._reported: dict[LaneKey, _Arrival] = {}
        self._next_number = epoch << _NUMBER_BITS
        self._locks: dict[LaneKey, _Lock] = {}
        #: Lanes whose locks this broker has granted, so that no lock from before the takeover is left.
        self._given: set[LaneKey] = set()
        #: Lanes whose offset changed, so that holders from before the takeover must not claim their locks.
        self._void: set[LaneKey] = set()
        #: Lanes whose last holder did not release the lock.
        self._abandoned: set[LaneKey] = set()

    def __len__(self) -> int:
        """Return the number of locks that were granted and not released or swept."""
        return len(self._locks)

    def arrive(
        self, topic_id: str, queue: str, now_ms: int, *, online_epoch: int, late_ms: int, previous: str | None = None
    ) -> None:
        """Note that a remapping brought a logical queue to the broker; locks of an earlier stay here are void.

        `late_ms` is how long the process of its `previous` broker may not know of that. `online_epoch` is as in
        `__init__`.
        """
        self._forget(topic_id, queue)
        self._arrivals[topic_id, queue] = _Arrival(now_ms + late_ms + PULL_LOCK_SETTLE_MS, online_epoch, previous)

    def came_from(self, lane: LaneKey, now_ms: int) -> str | None:
        """Return the broker whose process may know of a lock that this one knows nothing of; None if there is none."""
        arrival = self._arrival(lane)
        is_known = lane in self._locks or lane in self._given or lane in self._void
        return None if is_known or now_ms >= arrival.settled_ms else arrival.previous

    def account(self, lane: LaneKey, now_ms: int) -> LockAccount:
        """Return what is known of a lock whose queue another broker leads now, so that it is not granted here."""
        lock, (settled_ms, online_epoch, _) = self._locks.get(lane), self._arrival(lane)
        holder = None if lock is None else LockHolder(lock.client, lock.joined, lock.number, now_ms - lock.renewed_ms)
        return LockAccount(
            holder,
            max(0, settled_ms - now_ms),
            online_epoch,
            lane in self._given,
            lane in self._void,
            lane in self._abandoned,
        )

    def adopt(self, lane: LaneKey, account: LockAccount, now_ms: int) -> None:
        """Go on with what the previous broker's process knew of a lock, unless this broker has decided meanwhile.

        That process renews it no more. So a holder that does not renew it here has lost it after `PULL_LOCK_SETTLE_MS`.
        """
        if self.came_from(lane, now_ms) is None:
            return
        settled_ms = min(self._arrival(lane).settled_ms, now_ms + account.settles_in_ms)
        self._reported[lane] = _Arrival(settled_ms, account.online_epoch)
        flags = ((self._given, account.given), (self._void, account.void), (self._abandoned, account.abandoned))
        for lanes, is_in in flags:
            if is_in:
                lanes.add(lane)
        if account.holder is not None:
            holder = account.holder
            ago_ms = max(holder.renewed_ms_ago, PULL_LOCK_MS - PULL_LOCK_SETTLE_MS)
            self._locks[lane] = _Lock(holder.client, holder.joined, holder.number, now_ms - ago_ms)

    def receive(self, topic_id: str, queue: str, previous: PullLocks) -> None:
        """Note that a remapping brought a logical queue from another broker of this process, together with its locks.

        They are as valid here as they were there; earlier locks that were unknown there are unknown here.
        """
        self._forget(topic_id, queue)
        self._arrivals[topic_id, queue] = previous._arrivals.get((topic_id, queue), previous._taken)
        self._reported |= {lane: previous._reported[lane] for lane in _of_queue(previous._reported, topic_id, queue)}
        for lane, lock in previous._locks.items():
            if (lane.topic_id, lane.partition) == (topic_id, queue):
                self._locks[lane] = lock
        self._given |= _of_queue(previous._given, topic_id, queue)
        self._void |= _of_queue(previous._void, topic_id, queue)
        self._abandoned |= _of_queue(previous._abandoned, topic_id, queue)
        previous._forget(topic_id, queue)

    def _forget(self, topic_id: str, queue: str) -> None:
        for kept in (self._locks, self._reported):
            for lane in _of_queue(kept, topic_id, queue):
                del kept[lane]
        for lanes in (self._given, self._void, self._abandoned):
            lanes -= _of_queue(lanes, topic_id, queue)
        self._arrivals.pop((topic_id, queue), None)

    def _arrival(self, lane: LaneKey) -> _Arrival:
        if not self._arrivals:
            return self._taken
        if lane in self._reported:
            return self._reported[lane]
        return self._arrivals.get((lane.topic_id, lane.partition), self._taken)

    def has(self, lane: LaneKey, client: str, seat: Seat, now_ms: int) -> bool:
        """Return whether the client has the lock now: then a renewal does not change the holder."""
        lock = self._live(lane, seat, now_ms)
        return lock is not None and lock.client == client

    def take(self, lane: LaneKey, client: str, seat: Seat, now_ms: int, *, held: bool = False) -> int | None:
        """Grant the lock of `lane` to `client`, or renew it; return its number, None when it is refused.

        With `held`, a client renews a lock that it has had without a break, or claims it after a takeover. Without, it
        gets a new number, and requests under the old one are void. A leaving client gets no new lock: it may only keep
        the locks of the work that it is finishing.
        """
        stay = seat.clients.get(client)
        if stay is None or (stay.leaving and not held):
            return None
        lock = self._live(lane, seat, now_ms)
        if lock is not None and lock.client != client:
            return None
        if lock is not None and held:
            lock.renewed_ms = now_ms
            return lock.number
        if lock is None and not self._may_take(lane, client, seat, now_ms, held):
            return None
        if now_ms < self._arrival(lane).settled_ms:
            self._given.add(lane)
        if lane in self._locks and not held:
            self._abandoned.add(lane)
        self._next_number += 1
        self._locks[lane] = _Lock(client, stay.joined, self._next_number, now_ms)
        return self._next_number

    def _may_take(self, lane: LaneKey, client: str, seat: Seat, now_ms: int, held: bool) -> bool:
        """Return whether the client may have a lock that is free, as far as this broker knows."""
        settled_ms, online_epoch, _ = self._arrival(lane)
        settled = now_ms >= settled_ms or lane in self._given
        if held:
            # This is a late renewal of a lock that is over, or a claim. A broker accepts claims only after a takeover.
            return not settled and lane not in self._void and (client == seat.owner or client in seat.earlier)
        before = {holder for holder in seat.earlier if seat.clients[holder].joined <= online_epoch}
        return client == seat.owner and (settled or before <= {client})

    def pull(self, lane: LaneKey, client: str, seat: Seat, now_ms: int) -> None:
        """Check that the client may pull, and renew its lock.

        Raises
        ------
        Conflict
            `not_lock_holder`; `partition_moved` when it holds the lock but must hand the partition over.
        """
        lock = self._of(lane, client, seat, now_ms)
        if seat.owner != client:
            raise Conflict(
                "the partition was allocated to another client: finish, commit and release the lock",
                code="partition_moved",
                extra={"partition": lane.partition},
            )
        lock.renewed_ms = now_ms

    def check_commit(self, lane: LaneKey, client: str, seat: Seat, now_ms: int, *, number: int | None = None) -> None:
        """Check that the client may commit; if the request names a lock `number`, it must be the current one.

        Raises
        ------
        Conflict
            `not_lock_holder`.
        """
        lock = self._of(lane, client, seat, now_ms)
        if number is not None and number != lock.number:
            raise _not_holder(lane)

    def release(self, lane: LaneKey, client: str, *, number: int | None = None) -> bool:
        """Release the lock if the client holds it, under `number` if one is given; return whether it did.

        A release by another client is ignored, and so is a late one that names an earlier lock of the client.
        """
        lock = self._locks.get(lane)
        if lock is None or lock.client != client or number not in (None, lock.number):
            return False
        del self._locks[lane]
        return True

    def is_abandoned(self, lane: LaneKey) -> bool:
        """Return whether the last holder went without a release and that was not counted yet."""
        return lane in self._abandoned

    def counted(self, lane: LaneKey) -> None:
        """Note that the message of the last holder was counted as tried once more."""
        self._abandoned.discard(lane)

    def void(self, lane: LaneKey, now_ms: int) -> None:
        """Void the lock, because the group's offset was changed: its holder must ask for both again (SPEC POP-18)."""
        self._locks.pop(lane, None)
        self._abandoned.discard(lane)
        if now_ms < self._arrival(lane).settled_ms:
            self._void.add(lane)

    def sweep(self, now_ms: int) -> None:
        """Forget locks that were not renewed in time, and state of the takeover; may be called at any time."""
        self._arrivals = {queue: arrival for queue, arrival in self._arrivals.items() if now_ms < arrival.settled_ms}
        arrived = self._arrivals
        self._reported = {
            lane: report for lane, report in self._reported.items() if (lane.topic_id, lane.partition) in arrived
        }
        if now_ms >= self._taken.settled_ms:
            for lanes in (self._given, self._void):
                lanes.intersection_update([lane for lane in lanes if now_ms < self._arrival(lane).settled_ms])
        over = {lane for lane, lock in self._locks.items() if now_ms - lock.renewed_ms >= PULL_LOCK_MS}
        for lane in over:
            del self._locks[lane]
        self._abandoned |= over

    def _of(self, lane: LaneKey, client: str, seat: Seat, now_ms: int) -> _Lock:
        lock = self._live(lane, seat, now_ms)
        if lock is None or lock.client != client:
            raise _not_holder(lane)
        return lock

    def _live(self, lane: LaneKey, seat: Seat, now_ms: int) -> _Lock | None:
        lock = self._locks.get(lane)
        if lock is None or now_ms - lock.renewed_ms >= PULL_LOCK_MS:
            return None
        stay = seat.clients.get(lock.client)
        return lock if stay is not None and stay.joined == lock.joined else None


# Bits of a lock's number within one epoch of a broker; for 2**21 epochs, JSON readers hold the numbers exactly (2**53).
_NUMBER_BITS: Final = 32


def _of_queue(lanes: Iterable[LaneKey], topic_id: str, queue: str) -> set[LaneKey]:
    return {lane for lane in lanes if (lane.topic_id, lane.partition) == (topic_id, queue)}


def _not_holder(lane: LaneKey) -> Conflict:
    return Conflict(
        f"this client does not hold the pull lock of {lane.partition}",
        code="not_lock_holder",
        extra={"partition": lane.partition},
    )


class ClientLock:
    """A pull lock as its holder sees it, on the client's clock."""

    __slots__ = ("_asked_ms", "_lost", "number")

    def __init__(self, number: int, sent_ms: int) -> None:
        """Begin with the grant of a request that was sent at `sent_ms`."""
        self.number = number
        self._asked_ms = sent_ms
        self._lost = False

    def renewed(self, number: int, sent_ms: int, now_ms: int) -> bool:
        """Note the grant of a request that was sent at `sent_ms`; return False if it came too late.

        In that case the client has already given the lock up, and must release what it was granted.
        """
        if not self.holds(now_ms):
            return False
        self.number = number
        self._asked_ms = max(self._asked_ms, sent_ms)
        return True

    def lose(self) -> None:
        """Note that the lock is lost: the broker refused it, or it was released."""
        self._lost = True

    def holds(self, now_ms: int) -> bool:
        """Return whether the lock is certainly held; a lost lock does not come back."""
        self._lost = self._lost or now_ms - self._asked_ms >= PULL_LOCK_LOST_MS
        return not self._lost

    def is_due(self, now_ms: int) -> bool:
        """Return whether the lock should be renewed."""
        return now_ms - self._asked_ms >= PULL_LOCK_RENEW_MS
