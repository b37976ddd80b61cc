"""What one process hears of other hosts, and which of them it doubts (SPEC META-8).

    heard --refuses connections, or no answer for `silent_ms`--> doubted: asked in the log to renew its lease
      ^                                                             |
      '---------------- answers again ------------------------------'

A doubt decides nothing: a host that renews its lease when it is asked stays, whoever cannot reach it. It is asked again
after `again_ms` only, so processes that cannot reach each other at all write little.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

#: How many others each host listens to: if one dies with its neighbour, there is another one.
_NEIGHBOURS: Final = 2
#: Tries without an answer before a host counts as silent, however long they took: the listener may have slept itself.
_MISSED: Final = 2


def neighbours_of(host: str, hosts: Collection[str]) -> Sequence[str]:
    """Return the hosts to which `host` listens: the next ones in the ring of all, by id."""
    ring = sorted({*hosts, host})
    at = ring.index(host)
    return (ring[at + 1 :] + ring[:at])[:_NEIGHBOURS]


class _Heard(msgspec.Struct):
    heard_ms: int
    missed: int = 0
    #: Whether it has answered this process once, and whether it refuses connections now.
    is_reached: bool = False
    refuses: bool = False
    asked_ms: int | None = None


class Hearing:
    """What is heard of the hosts to which a process listens, by its own clock. In memory only."""

    __slots__ = ("_again_ms", "_earlier", "_hosts", "_silent_ms")

    def __init__(self, *, silent_ms: int, again_ms: int) -> None:
        self._silent_ms = silent_ms
        self._again_ms = again_ms
        self._hosts: dict[str, _Heard] = {}
        self._earlier: frozenset[str] = frozenset()

    def listen(self, hosts: Collection[str], earlier: Collection[str], now_ms: int) -> None:
        """Listen to these hosts from now on; `earlier` are earlier lives at this process's own address."""
        self._earlier = frozenset(earlier)
        wanted = {*hosts, *earlier}
        self._hosts = {id: self._hosts.get(id) or _Heard(now_ms) for id in wanted}

    def heard(self, host: str, now_ms: int) -> bool:
        """Note that a host has answered; return whether it is the first time."""
        known = self._hosts.get(host)
        if known is None:
            return False
        is_first = not known.is_reached
        known.heard_ms, known.missed, known.is_reached, known.refuses = now_ms, 0, True, False
        return is_first

    def missed(self, host: str, *, refuses: bool) -> None:
        """Note that a host did not answer, and whether it refused the connection."""
        known = self._hosts.get(host)
        if known is not None:
            known.missed += 1
            known.refuses = refuses

    def has_ended(self, host: str) -> bool:
        """Whether a host has most probably ended: it was reached once, and refuses connections now."""
        known = self._hosts.get(host)
        return host in self._earlier or (known is not None and known.is_reached and known.refuses)

    def doubted(self, now_ms: int) -> set[str]:
        """Return the hosts to ask now."""
        return {id for id, known in self._hosts.items() if self._is_doubted(id, known, now_ms)}

    def _is_doubted(self, host: str, known: _Heard, now_ms: int) -> bool:
        if known.asked_ms is not None and now_ms - known.asked_ms < self._again_ms:
            return False
        is_silent = known.missed >= _MISSED and now_ms - known.heard_ms >= self._silent_ms
        return is_silent or self.has_ended(host)

    def asked(self, hosts: Collection[str], now_ms: int) -> None:
        """Note that this process has asked these hosts."""
        for host in hosts:
            self._hosts[host].asked_ms = now_ms
