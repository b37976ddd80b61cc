"""Until when an exclusive client may consume: both ends of it (SPEC ORDER-3).

The holder of the meta role authorizes a client with each heartbeat for the same length, and calls it offline when that
has passed. It tells the length; the client counts it from before it sent the heartbeat, and so stops first, whatever
their clocks say and however late the answer comes:

    client    send |------------- 30 s - margin ----------| stops
    meta             receive |------------------ 30 s -----------------| offline, its partitions are given away

The times are in the memory of the holder alone, so that a heartbeat costs no write. Whoever takes the role over
authorizes everybody who is online for a whole length from then on: nobody was authorized for longer, because the one
before gave none after its lease.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mq.meta import Member, OwnLease
from mq.order_limits import AUTHORIZATION_MARGIN_MS, AUTHORIZATION_MS_DEFAULT

__all__ = ["Authorization", "Authorizations"]

# Before any reading of a clock: a monotonic clock may begin anywhere.
_NEVER: Final = -(2**63)


class Authorizations:
    """What the holder of the meta role has granted, on its own clock. In memory only; not safe for threads."""

    __slots__ = ("_condemned", "_lease", "_length_ms", "_until_ms")

    def __init__(
        self,
        lease: OwnLease,
        known: Collection[Member],
        taken_ms: int,
        *,
        length_ms: int = AUTHORIZATION_MS_DEFAULT,
    ) -> None:
        """The role was taken at `taken_ms`, when these stays were in the log; `lease` is the holder's own."""
        self._lease = lease
        self._length_ms = length_ms
        self._until_ms = dict.fromkeys(known, taken_ms + length_ms)
        self._condemned: set[Member] = set()

    def grant(self, member: Member, now_ms: int) -> int:
        """Authorize a client that is in the log; for how long from now on, 0 for not at all."""
        if not self._lease.holds(now_ms) or member in self._condemned:
            return 0
        self._until_ms[member] = max(self._until_ms.get(member, now_ms), now_ms + self._length_ms)
        return self._until_ms[member] - now_ms

    def rest(self, member: Member, now_ms: int) -> int:
        """How long a client is authorized still; one that is leaving is not told, and may finish what it holds."""
        return max(0, self._until_ms.get(member, now_ms) - now_ms)

    def until_ms(self, member: Member) -> int | None:
        """When the client will be called offline; None when it is not known."""
        return self._until_ms.get(member)

    def over(self, known: Collection[Member], now_ms: int) -> set[Member]:
        """The clients to call offline now. They are granted nothing from here on, so that it stays true meanwhile."""
        for member in known:
            self._until_ms.setdefault(member, now_ms + self._length_ms)
        self._condemned = {member for member in known if self._until_ms[member] <= now_ms}
        return set(self._condemned)

    def settle(self, known: Collection[Member]) -> None:
        """The decision about them was stored, or has failed: forget those who are gone, grant the others again."""
        self._condemned = set()
        self._until_ms = {member: until for member, until in self._until_ms.items() if member in known}


class Authorization:
    """What a client was granted, on its own clock. Not safe for threads."""

    __slots__ = ("_margin_ms", "lapses", "until_ms")

    def __init__(self, *, margin_ms: int = AUTHORIZATION_MARGIN_MS) -> None:
        self._margin_ms = margin_ms
        #: When the client must stop to consume.
        self.until_ms = _NEVER
        #: How often it ended and came back: what was begun before that is not the client's any more.
        self.lapses = 0

    def granted(self, sent_ms: int, length_ms: int, now_ms: int) -> None:
        """A heartbeat that was sent at `sent_ms` was answered now. Answers may come in any order."""
        until_ms = sent_ms + length_ms - self._margin_ms
        if until_ms > self.until_ms:
            self.lapses += not self.holds(now_ms)
            self.until_ms = until_ms

    def holds(self, now_ms: int) -> bool:
        """Whether the client may process one more message."""
        return now_ms < self.until_ms
