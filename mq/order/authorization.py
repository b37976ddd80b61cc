"""Authorizations of exclusive clients, at both ends: the meta role and the client (SPEC ORDER-3).

With each heartbeat, the holder of the meta role authorizes a client for a fixed duration, and declares it offline when
that has passed. It sends the duration; the client counts it from before it sent the heartbeat. So the client stops
first, whatever the clocks show and however late the answer comes:

    client    send |------------- 30 s - margin ----------| stops
    meta             receive |------------------ 30 s -----------------| offline, its partitions go to others

The times are only in the memory of the holder, so that a heartbeat costs no write. A process that takes the role over
authorizes every online client for a whole duration from then on. No client was authorized for longer, because the
previous holder authorized none after its lease.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from deltamq.mq.limits import AUTHORIZATION_MARGIN_MS, AUTHORIZATION_MS_DEFAULT
from deltamq.mq.meta.brokers import OwnLease
from deltamq.mq.meta.online import Member

# A time before any reading of a clock: a monotonic clock may begin anywhere.
_NEVER: Final = -(2**63)


class Authorizations:
    """The authorizations that the holder of the meta role granted, by its clock. In memory; not safe for threads."""

    __slots__ = ("_condemned", "_lease", "_length_ms", "_until_ms")

    def __init__(
        self,
        lease: OwnLease,
        known: Collection[Member],
        taken_ms: int,
        *,
        length_ms: int = AUTHORIZATION_MS_DEFAULT,
    ) -> None:
        """Begin at `taken_ms`, when the role was taken, with the stays in the log; `lease` is the holder's own."""
        self._lease = lease
        self._length_ms = length_ms
        self._until_ms = dict.fromkeys(known, taken_ms + length_ms)
        self._condemned: set[Member] = set()

    def grant(self, member: Member, now_ms: int) -> int:
        """Authorize a client that is in the log; return for how many milliseconds from now, 0 if not at all."""
        if not self._lease.holds(now_ms) or member in self._condemned:
            return 0
        self._until_ms[member] = max(self._until_ms.get(member, now_ms), now_ms + self._length_ms)
        return self._until_ms[member] - now_ms

    def rest(self, member: Member, now_ms: int) -> int:
        """Return how long a client is still authorized, in ms: a leaving client may finish its work in that time."""
        return max(0, self._until_ms.get(member, now_ms) - now_ms)

    def until_ms(self, member: Member) -> int | None:
        """Return when the client will be declared offline; None when it is not known."""
        return self._until_ms.get(member)

    def over(self, known: Collection[Member], now_ms: int) -> set[Member]:
        """Return the clients to declare offline now. From here on they are granted nothing, so that this stays true."""
        for member in known:
            self._until_ms.setdefault(member, now_ms + self._length_ms)
        self._condemned = {member for member in known if self._until_ms[member] <= now_ms}
        return set(self._condemned)

    def decided(self, known: Collection[Member]) -> None:
        """End the decision, stored or failed: forget clients that are not in `known`, allow grants to the others."""
        self._condemned = set()
        self._until_ms = {member: until for member, until in self._until_ms.items() if member in known}


class Authorization:
    """The authorization of a client, by its own clock. Not safe for threads."""

    __slots__ = ("_margin_ms", "lapses", "until_ms")

    def __init__(self, *, margin_ms: int = AUTHORIZATION_MARGIN_MS) -> None:
        self._margin_ms = margin_ms
        #: When the client must stop consuming.
        self.until_ms = _NEVER
        #: The number of times that it expired and was granted again: work from before is no longer the client's.
        self.lapses = 0

    def granted(self, sent_ms: int, length_ms: int, now_ms: int) -> None:
        """Note the answer to a heartbeat that was sent at `sent_ms`. Answers may come in any order."""
        until_ms = sent_ms + length_ms - self._margin_ms
        if until_ms > self.until_ms:
            self.lapses += not self.holds(now_ms)
            self.until_ms = until_ms

    def holds(self, now_ms: int) -> bool:
        """Return whether the client may process one more message."""
        return now_ms < self.until_ms
