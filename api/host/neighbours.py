"""Other processes over the network: whether they answer, and that the metadata has changed (SPEC META-8, LOOK-24).

    hosts by id:   h1 --GET /healthz--> h2 --> h3 --> h1 ...       each listens to the next two, twice a second
                    '------------------------> h3
    h1 changes the metadata:  h1 --GET /readyz, Mq-Meta-Offset--> h2, h3: they read it at once

What is heard is only a hint (`mq.meta.hearing`): the metadata decides. So do the looks at it, which find each change
that nobody was told of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.peers import Call, Peers
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.brokers import Host

#: Seconds between two tries to reach a neighbour, and for which one waits for an answer.
_EVERY_S: Final = 0.5
_WITHIN_S: Final = 2.0


class Neighbours:
    """Listens to other processes and tells them of changes, from `start` to `stop`; used on the event loop."""

    def __init__(self, meta: HostedMeta, hosting: Hosting, peers: Peers, *, tells: bool) -> None:
        """`tells` says that looks at the metadata are seldom, so that others are told of changes."""
        self._meta = meta
        self._hosting = hosting
        self._peers = peers
        self._listening: asyncio.Task[None] | None = None
        self._trying: dict[str, asyncio.Task[None]] = {}
        self._telling: dict[str, asyncio.Task[None]] = {}
        if tells:
            meta.stored.append(self._tell_all)

    def start(self) -> None:
        """Begin to listen."""
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def stop(self) -> None:
        """End everything."""
        tasks = [*self._trying.values(), *self._telling.values()]
        if self._listening is not None:
            tasks.append(self._listening)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            for host in self._hosting.neighbours():
                if host.id not in self._trying:
                    self._begin(self._trying, host.id, self._try(host))
            await asyncio.sleep(_EVERY_S)

    async def _try(self, host: Host) -> None:
        answers = await self._peers.answers(host.address, _WITHIN_S)
        self._hosting.note_answer(host.id, answers)

    def _tell_all(self) -> None:
        """Let all other processes read the metadata as far as this one has; who is being told is told once more."""
        for host in self._meta.now.brokers.hosts.values():
            if host.id not in self._telling and host.id != self._hosting.id:
                self._begin(self._telling, host.id, self._tell(host))

    async def _tell(self, host: Host) -> None:
        told = -1
        while told < self._hosting.meta_offset:
            told = self._hosting.meta_offset
            # One that cannot be reached reads the change later by itself.
            with contextlib.suppress(DeltaMQError):
                await self._peers.ask(host.id, host.address, Call("GET", b"/readyz", [], b"", _WITHIN_S))

    def _begin(self, tasks: dict[str, asyncio.Task[None]], host: str, work: Coroutine[Any, Any, None]) -> None:
        task = tasks[host] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: tasks.pop(host, None))
