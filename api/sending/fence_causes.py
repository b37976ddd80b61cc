"""Waiting until this process knows why a fence refused an append: the broker's new owner, or what has moved.

A process puts the fence up before it stores the cause in the metadata, so the cause follows within milliseconds; or
within a lease, by another process, if the one that fenced died in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from deltamq.api.host.fencing import passes
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.sealing import Sealer
from deltamq.api.log.partition import Partitions, fence_not_known
from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import Fenced

#: Seconds to wait for the cause of a fence in the metadata.
FENCED_S: Final = 15.0
AGAIN_S: Final = Backoff(0.005, 0.25)


class FenceCauses:
    """The causes of the fences that refuse this process's appends; used on the event loop."""

    def __init__(self, topics: Topics, meta: HostedMeta, partitions: Partitions, sealer: Sealer) -> None:
        self._topics = topics
        self._meta = meta
        self._partitions = partitions
        self._sealer = sealer
        self._loop = partitions.loop

    async def known(self, topic: HostedTopic, left: Callable[[], tuple[str, Fenced] | None], until: float) -> None:
        """Read the metadata until it has the cause of each fence that refused an append to partitions of the topic.

        `left` returns a partition and its refusal of which the cause is not known yet, None if there is none; `until`
        is on the loop's clock.

        Raises
        ------
        Unavailable
            `fenced`: the metadata does not have it in time.
        """
        failures = 0
        while True:
            await self._meta.refresh()
            refused = left()
            if refused is None:
                return
            if self.is_over(until):
                raise fence_not_known(*refused)
            await self.sealed(topic, until)
            failures += 1
            await asyncio.sleep(AGAIN_S.after(failures))

    async def known_at(self, topic: HostedTopic, partition: str, refused: Fenced, until: float) -> None:
        """Do what `known` does for one fence, which refused an append to this partition."""

        def left() -> tuple[str, Fenced] | None:
            epochs = self._topics.placement(topic).fence_epochs[partition]
            return None if passes(epochs, refused) else (partition, refused)

        await self.known(topic, left, until)

    async def sealed(self, topic: HostedTopic, until: float) -> None:
        """Seal what waits in the topic, and wait for it until then; it goes on without us."""
        sealing = asyncio.ensure_future(self._sealer.seal(topic))
        await asyncio.wait({sealing}, timeout=max(0.0, until - self._loop.time()))

    def is_over(self, until: float) -> bool:
        """Whether nothing should be waited for any more."""
        return self._loop.time() >= until or self._partitions.stopping
