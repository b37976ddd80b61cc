"""Pull locks: one client at a time pulls and commits a partition for an exclusive group (SPEC ORDER-4, ORDER-5).

The allocation says who should have a partition, the lock says who has it. A handover from A to B:

    A   pull  pull |allocated to B|  finish, commit, release
    B                     take: refused ...                  take: granted, start at A's committed offset

Only the owner by the allocation may take a free lock; whoever holds it may renew and commit, but not pull, until it has
released it. A lock is free when it was released, not renewed for 60 s, or its holder's stay has ended
(`mq.meta.online.ClientGone`): its authorization is over then, so it has stopped.

Locks are in the memory of the broker, and a crash forgets them. That is safe:

- A holder that gets no answer calls its lock lost after 25 s (`ClientLock`), and a broker that was taken over gives a
  partition away only after 26 s if anybody but its owner may still hold it: one of `Seat.earlier`, who had it before
  and is still known, and who joined before the takeover. Once it has given a lock, it knows all about it.
- Meanwhile who holds a lock *claims* it (`held`), so a run in the middle goes on. Nobody else can have it: the broker
  before did not renew it for two, and is not there any more.

A client repeats a release until it is answered (else the next owner waits for the expiry), and does not ask for that
partition meanwhile. So who goes without giving its lock back has died, or lost it. The message that it was at may be
why, and counts as tried (`is_abandoned`, SPEC ORDER-8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq.errors import Conflict
from mq.meta import Seat
from mq.order_limits import PULL_LOCK_LOST_MS, PULL_LOCK_MS, PULL_LOCK_RENEW_MS, PULL_LOCK_SETTLE_MS
from mq.queue import LaneKey

__all__ = ["ClientLock", "PullLocks"]


@dataclass(slots=True)
class _Lock:
    """A lock that was given; `joined` is the stay of its holder."""

    client: str
    joined: int
    number: int
    renewed_ms: int


class PullLocks:
    """The pull locks of one broker in one epoch, on its host's clock. In memory only; not safe for threads.

    Call it only while the own lease holds, and look at the lease again before an answer leaves.
    """

    __slots__ = ("_abandoned", "_given", "_locks", "_next_number", "_online_epoch", "_settled_ms", "_void")

    def __init__(self, taken_ms: int, *, epoch: int, online_epoch: int) -> None:
        """The broker was taken at `taken_ms`, by this epoch: its numbers are above those of earlier ones.

        `online_epoch` is that of the online states then (`mq.meta.online.OnlineState.epoch`), or a later one.
        """
        self._settled_ms = taken_ms + PULL_LOCK_SETTLE_MS
        self._online_epoch = online_epoch
        self._next_number = epoch << _NUMBER_BITS
        self._locks: dict[LaneKey, _Lock] = {}
        #: Lanes whose locks were given here: nobody can hold one from before.
        self._given: set[LaneKey] = set()
        #: Lanes in which who had a lock before does not know where the group goes on.
        self._void: set[LaneKey] = set()
        #: Lanes whose last holder did not give the lock back.
        self._abandoned: set[LaneKey] = set()

    def __len__(self) -> int:
        """Locks that were given and not released or swept."""
        return len(self._locks)

    def has(self, lane: LaneKey, client: str, seat: Seat, now_ms: int) -> bool:
        """Whether the client has the lock now: then a renewal gives nothing to anybody."""
        lock = self._live(lane, seat, now_ms)
        return lock is not None and lock.client == client

    def take(self, lane: LaneKey, client: str, seat: Seat, now_ms: int, *, held: bool = False) -> int | None:
        """Give the lock of `lane` to `client`, or renew it; its number, None when it is refused.

        A client renews, and claims after a takeover, what it has had without a break (`held`). Asking anew, it gets
        another number, and what it sent under the one before is void. Who has said that it goes begins nothing: it may
        only keep what it is finishing.
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
        if now_ms < self._settled_ms:
            self._given.add(lane)
        if lane in self._locks and not held:
            self._abandoned.add(lane)
        self._next_number += 1
        self._locks[lane] = _Lock(client, stay.joined, self._next_number, now_ms)
        return self._next_number

    def _may_take(self, lane: LaneKey, client: str, seat: Seat, now_ms: int, held: bool) -> bool:
        """Whether the client may have a lock that is free, as far as this broker knows."""
        settled = now_ms >= self._settled_ms or lane in self._given
        if held:
            # A renewal of what is over came late, or a claim: only a broker that was taken over believes the latter.
            return not settled and lane not in self._void and (client == seat.owner or client in seat.earlier)
        before = {one for one in seat.earlier if seat.clients[one].joined <= self._online_epoch}
        return client == seat.owner and (settled or before <= {client})

    def pull(self, lane: LaneKey, client: str, seat: Seat, now_ms: int) -> None:
        """Return if the client may pull, and renew its lock.

        Raises
        ------
        Conflict
            `not_lock_holder`; `partition_moved` when it holds the lock and must hand the partition over.
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
        """Return if the client may commit, under the lock of this number if it says one.

        Raises
        ------
        Conflict
            `not_lock_holder`.
        """
        lock = self._of(lane, client, seat, now_ms)
        if number is not None and number != lock.number:
            raise _not_holder(lane)

    def release(self, lane: LaneKey, client: str, *, number: int | None = None) -> bool:
        """Give the lock back if the client has it, and (if it says one) has it by this number; whether it did.

        Anybody else is ignored (R80), and so is a request that comes late, when the client has the lock anew.
        """
        lock = self._locks.get(lane)
        if lock is None or lock.client != client or number not in (None, lock.number):
            return False
        del self._locks[lane]
        return True

    def is_abandoned(self, lane: LaneKey) -> bool:
        """Whether who had the lock before went without giving it back, and that was not counted yet."""
        return lane in self._abandoned

    def counted(self, lane: LaneKey) -> None:
        """The message that it was at counts as tried once more."""
        self._abandoned.discard(lane)

    def void(self, lane: LaneKey, now_ms: int) -> None:
        """The group goes on elsewhere in the partition: whoever has the lock must ask anew where (SPEC POP-18)."""
        self._locks.pop(lane, None)
        self._abandoned.discard(lane)
        if now_ms < self._settled_ms:
            self._void.add(lane)

    def sweep(self, now_ms: int) -> None:
        """Forget what was not renewed in time, and of the time before; nothing depends on when this is called."""
        if now_ms >= self._settled_ms:
            self._given.clear()
            self._void.clear()
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
        """The lock, if it is taken."""
        lock = self._locks.get(lane)
        if lock is None or now_ms - lock.renewed_ms >= PULL_LOCK_MS:
            return None
        stay = seat.clients.get(lock.client)
        return lock if stay is not None and stay.joined == lock.joined else None


# Locks given in one epoch of a broker; their numbers stay in what JSON readers hold exactly (2**53) for 2**21 epochs.
_NUMBER_BITS: Final = 32


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
        """The request that was sent at `sent_ms` was granted."""
        self.number = number
        self._asked_ms = sent_ms
        self._lost = False

    def renewed(self, number: int, sent_ms: int, now_ms: int) -> bool:
        """A request that was sent at `sent_ms` was granted, and the answer is here; False if it came too late.

        Then the client has stopped to count on the lock: it must give back what it was granted.
        """
        if not self.holds(now_ms):
            return False
        self.number = number
        self._asked_ms = max(self._asked_ms, sent_ms)
        return True

    def lose(self) -> None:
        """The broker says that another has it, or it was released."""
        self._lost = True

    def holds(self, now_ms: int) -> bool:
        """Whether the lock is certainly held; once lost, it is lost for good."""
        self._lost = self._lost or now_ms - self._asked_ms >= PULL_LOCK_LOST_MS
        return not self._lost

    def is_due(self, now_ms: int) -> bool:
        """Whether it should be renewed."""
        return now_ms - self._asked_ms >= PULL_LOCK_RENEW_MS
