"""Calls that are repeated with an id when their answer was lost: who repeats a call no longer waits for the one before.

    pop x ──────────waits──────────┐ its client is counted as gone, so it ends with what it has by then
                    pop x again ───┴── gets that: the messages of the answer that nobody reads

Without this, the first pop could take messages after the second one had looked for them, and they would be hidden for
their invisible time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from deltamq.api.wire.request import Client


class _AtWork(NamedTuple):
    client: Client
    over: asyncio.Event


class RepeatedCalls:
    """The calls of this process that have an id, at most one of each at work; used on the event loop."""

    def __init__(self) -> None:
        self._at_work: dict[tuple[str, ...], _AtWork] = {}

    async def begin(self, key: tuple[str, ...] | None, client: Client) -> Callable[[], None]:
        """Wait until no other call of this key is at work; return what to call when this one has ended.

        None is the key of a call without an id.
        """
        if key is None:
            return _nothing
        while (before := self._at_work.get(key)) is not None:
            before.client.leave()
            await before.over.wait()
        mine = self._at_work[key] = _AtWork(client, asyncio.Event())

        def end() -> None:
            del self._at_work[key]
            mine.over.set()

        return end


def _nothing() -> None:
    """End a call without an id."""
