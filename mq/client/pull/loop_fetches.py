"""The open fetches of a consumer on an event loop: a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Generic

from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.pull.fetch import FETCH_HEADERS, FetchAsk, Fetched, Finished, Tag, read_fetched
from deltamq.mq.client.shells.loop import LoopCondition
from deltamq.mq.errors import DeltaMQError


class LoopFetches(Generic[Tag]):
    """At most `open_max` open fetches."""

    def __init__(self, *, open_max: int, timeout_s: float) -> None:
        self._open_max = open_max
        self._timeout_s = timeout_s
        self._open: dict[Tag, asyncio.Task[None]] = {}
        self._finished: list[Finished[Tag]] = []
        self._changed = LoopCondition()
        self._woken = False

    async def start(self, tag: Tag, endpoint: Endpoint, ask: FetchAsk) -> bool:
        """Send a fetch; see `Fetches`."""
        if len(self._open) >= self._open_max:
            return False
        self._open[tag] = asyncio.get_running_loop().create_task(self._fetch(tag, endpoint, ask))
        return True

    async def _fetch(self, tag: Tag, endpoint: Endpoint, ask: FetchAsk) -> None:
        timeout_s = self._timeout_s + ask.wait_ms / 1000
        result: Fetched | DeltaMQError
        try:
            answer = await endpoint.call("GET", ask.path, query=ask.query, headers=FETCH_HEADERS, timeout_s=timeout_s)
            result = read_fetched(answer.headers, answer.body)
        except DeltaMQError as error:
            result = error
        del self._open[tag]
        self._finished.append(Finished(tag, endpoint, result))
        self._changed.notify()

    async def finished(self, timeout_s: float) -> Sequence[Finished[Tag]]:
        """Return the fetches that have ended; see `Fetches`."""
        await self._changed.until(lambda: self._finished or self._woken, timeout_s)
        self._woken = False
        finished, self._finished = self._finished, []
        return finished

    def drop(self, tag: Tag) -> None:
        """Forget the open fetch of this tag; see `Fetches`."""
        task = self._open.pop(tag, None)
        if task is not None:
            task.cancel()
        self._finished = [finished for finished in self._finished if finished.tag != tag]

    def wake(self) -> None:
        """Let a waiting `finished` return."""
        self._woken = True
        self._changed.notify()

    def keep(self, endpoints: Collection[Endpoint]) -> None:
        """Do nothing: idle connections are closed after some seconds."""

    async def close(self) -> None:
        """Drop everything; see `Fetches`."""
        tasks = list(self._open.values())
        for tag in list(self._open):
            self.drop(tag)
        if tasks:
            await asyncio.wait(tasks)
