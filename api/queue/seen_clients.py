"""The clients that consumed for a shared group lately, as far as this process knows from pops and heartbeats.

Nothing depends on this list: clients of a shared group come and go freely (SPEC CONS-5). It only describes a group, and
is kept only in memory. A silent client stays in it as long as in an exclusive group, for the length of an
authorization, and as long as it may hold messages: until the invisible time of its latest pop with messages ends.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from deltamq.mq.meta.online import Subscription

#: Maximum number of clients remembered, of all groups; the ones silent for longest are forgotten first.
_SEEN_MAX: Final = 10_000
#: Maximum number of topics remembered of one client; the ones that it named longest ago are forgotten first.
TOPICS_MAX: Final = 100


class Seen(msgspec.Struct):
    """A client of a shared group."""

    since_ms: int
    last_ms: int
    #: When its latest messages come again unless they are acknowledged.
    holds_until_ms: int = 0
    topics: dict[str, Subscription] = msgspec.field(default_factory=dict)


class SeenClients:
    """The clients of shared groups; used on the event loop."""

    def __init__(self, now_ms: Callable[[], int], *, keep_ms: int) -> None:
        """`now_ms` is the wall clock; a client that was silent for `keep_ms` is gone."""
        self._now_ms = now_ms
        self._keep_ms = keep_ms
        #: Clients by group and name, the one silent for longest first.
        self._seen: OrderedDict[tuple[str, str], Seen] = OrderedDict()

    def note(self, group: str, client: str, topics: Mapping[str, Subscription]) -> None:
        """Note that the client consumes these topics for the group, among others."""
        known = self._noted(group, client).topics
        for name, subscription in topics.items():
            known.pop(name, None)  # it is the latest now
            known[name] = subscription
        _bound(known)

    def holds(self, group: str, client: str, invisible_ms: int) -> None:
        """Note that the client got messages for this long."""
        seen = self._noted(group, client)
        seen.holds_until_ms = max(seen.holds_until_ms, self._now_ms() + invisible_ms)

    def beat(self, group: str, client: str, topics: Mapping[str, Subscription]) -> None:
        """Note the client's heartbeat: it consumes these topics for the group, and no others."""
        seen = self._noted(group, client)
        seen.topics = dict(topics)
        _bound(seen.topics)

    def _noted(self, group: str, client: str) -> Seen:
        """Note that the client is here now, and return it."""
        now_ms, key = self._now_ms(), (group, client)
        seen = self._seen.get(key)
        if seen is None or not self._is_here(seen, now_ms):
            seen = self._seen[key] = Seen(now_ms, now_ms)
        seen.last_ms = now_ms
        self._seen.move_to_end(key)
        while len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)
        return seen

    def gone(self, group: str, client: str) -> None:
        """Forget a client that says that it leaves."""
        self._seen.pop((group, client), None)

    def forget(self, group: str) -> None:
        """Forget the clients of a deleted group; a new group of the same name has clients of its own."""
        for key in [key for key in self._seen if key[0] == group]:
            del self._seen[key]

    def of(self, group: str) -> dict[str, Seen]:
        """Return the clients of a group by name, sorted."""
        now_ms = self._now_ms()
        for key in [key for key, seen in self._seen.items() if not self._is_here(seen, now_ms)]:
            del self._seen[key]
        return {client: seen for (name, client), seen in sorted(self._seen.items(), key=_name) if name == group}

    def counts(self) -> dict[str, int]:
        """Return how many clients each group has."""
        now_ms = self._now_ms()
        return Counter(group for (group, _), seen in self._seen.items() if self._is_here(seen, now_ms))

    def _is_here(self, seen: Seen, now_ms: int) -> bool:
        return now_ms - seen.last_ms < self._keep_ms or now_ms < seen.holds_until_ms


def _bound(topics: dict[str, Subscription]) -> None:
    """Forget the topics beyond the limit that were named longest ago."""
    while len(topics) > TOPICS_MAX:
        del topics[next(iter(topics))]


def _name(item: tuple[tuple[str, str], Seen]) -> tuple[str, str]:
    return item[0]
