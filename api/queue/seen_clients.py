"""Who has consumed for a shared group lately, as far as this process was told: by pops and by heartbeats.

Nothing depends on it: clients of a shared group come and go without anybody's leave (SPEC CONS-5). It is for people who
look at a group, so it is kept in memory only, for as long as a silent client of an exclusive group is called online.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mq.meta import Subscription

__all__ = ["Seen", "SeenClients"]

#: Clients of all groups that are remembered; the ones that were silent for the longest are forgotten first.
_SEEN_MAX: Final = 10_000


@dataclass(slots=True)
class Seen:
    """A client of a shared group."""

    since_ms: int
    last_ms: int
    topics: dict[str, Subscription] = field(default_factory=dict)


class SeenClients:
    """Used on the event loop."""

    def __init__(self, now_ms: Callable[[], int], *, keep_ms: int) -> None:
        """`now_ms` is the wall clock; who has said nothing for `keep_ms` is gone."""
        self._now_ms = now_ms
        self._keep_ms = keep_ms
        #: By group and client, the most silent first.
        self._seen: OrderedDict[tuple[str, str], Seen] = OrderedDict()

    def note(self, group: str, client: str, topics: Mapping[str, Subscription]) -> None:
        """The client consumes these topics for the group."""
        now_ms, key = self._now_ms(), (group, client)
        found = self._seen.get(key)
        if found is None or not self._is_here(found, now_ms):
            found = self._seen[key] = Seen(now_ms, now_ms)
        found.last_ms = now_ms
        found.topics.update(topics)
        self._seen.move_to_end(key)
        while len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)

    def gone(self, group: str, client: str) -> None:
        """The client says that it goes."""
        self._seen.pop((group, client), None)

    def forget(self, group: str) -> None:
        """The group is over; one that is made anew has clients of its own."""
        for key in [key for key in self._seen if key[0] == group]:
            del self._seen[key]

    def of(self, group: str) -> dict[str, Seen]:
        """The clients of a group by name, sorted."""
        now_ms = self._now_ms()
        for key in [key for key, seen in self._seen.items() if not self._is_here(seen, now_ms)]:
            del self._seen[key]
        return {client: seen for (name, client), seen in sorted(self._seen.items(), key=_name) if name == group}

    def _is_here(self, seen: Seen, now_ms: int) -> bool:
        return now_ms - seen.last_ms < self._keep_ms


def _name(item: tuple[tuple[str, str], Seen]) -> tuple[str, str]:
    return item[0]
