"""`deltamq consume` without a group: how far it reads."""

from __future__ import annotations

from collections.abc import Mapping

from mq.client.cli.consume import polls
from mq.client.messages import ReceivedMessage

OLD, NEW = "orders@broker-a", "orders@broker-b"


class Growing:
    """A consumer of a topic that gets messages, and a partition, after the command has begun."""

    def __init__(self) -> None:
        self._next = {OLD: 0, NEW: 0}
        self._found = [(OLD, 3), (NEW, 4), (OLD, 7)]

    def end_offsets(self) -> Mapping[str, int]:
        return {OLD: 10}

    def position(self, partition: str) -> int:
        return self._next[partition]

    def poll(self, max_messages: int, wait_ms: int) -> list[ReceivedMessage]:
        partition, count = self._found.pop(0)
        first = self._next[partition]
        self._next[partition] = first + min(count, max_messages)
        return [ReceivedMessage(partition, offset, b"") for offset in range(first, self._next[partition])]


def test_messages_that_came_later_do_not_count_against_max() -> None:
    shown = [message for found in polls(Growing(), follow=False, max_messages=8) for message in found]
    assert [(message.partition, message.offset) for message in shown] == [(OLD, offset) for offset in range(8)]


def test_it_ends_at_the_offsets_that_were_the_ends_when_it_began() -> None:
    shown = [message for found in polls(Growing(), follow=False, max_messages=None) for message in found]
    assert [(message.partition, message.offset) for message in shown] == [(OLD, offset) for offset in range(10)]
