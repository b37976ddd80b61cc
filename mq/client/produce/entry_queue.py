"""The queue of an executor: entries in order, cut into the batches of its requests. The executor's lock guards it."""

from __future__ import annotations

from collections import deque

from deltamq.mq.client.produce.entry import Entry


class EntryQueue:
    """Entries in the order in which they were put."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._entries: deque[Entry] = deque()
        #: Number of entries at the head that are sent one by one, because their batch was refused.
        self._alone = 0

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> None:
        """Append `entry`."""
        self._entries.append(entry)

    def put_back(self, batch: list[Entry]) -> None:
        """Put a refused batch back at the head, to be sent entry by entry: a bad message must not fail the others."""
        self._entries.extendleft(reversed(batch))
        self._alone = len(batch)

    def remove(self, entry: Entry) -> bool:
        """Remove `entry`; returns False if it is not queued any more."""
        try:
            self._entries.remove(entry)
        except ValueError:
            return False
        return True

    def take_all(self) -> list[Entry]:
        """Remove and return all entries."""
        entries = list(self._entries)
        self._entries.clear()
        return entries

    def take_expired(self, now: float) -> list[Entry]:
        """Remove and return the entries at the head whose deadline has passed."""
        expired = []
        while self._entries and self._entries[0].deadline <= now:
            expired.append(self._entries.popleft())
        return expired

    def fills_a_batch(self) -> bool:
        """Return whether the queued entries fill a batch, so that waiting for more would not make it larger."""
        return (
            sum(entry.count for entry in self._entries) >= self._messages_max
            or sum(entry.size for entry in self._entries) >= self._bytes_max
        )

    def take_batch(self) -> list[Entry]:
        """Remove and return the entries of the next request: those at the head that may share it and fit."""
        batch = [self._entries.popleft()]
        if self._alone > 0:
            self._alone -= 1
            return batch
        messages, size = batch[0].count, batch[0].size
        while self._entries and batch[0].goes_with(self._entries[0]):
            following = self._entries[0]
            messages += following.count
            size += following.size
            if messages > self._messages_max or size > self._bytes_max:
                break
            batch.append(self._entries.popleft())
        return batch
