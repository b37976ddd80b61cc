"""Sealing: how a partition of an ordered topic stops receiving messages of keys that it gave up (SPEC ROUTE-6).

    expansion: `KeysMoved` in the metadata                     the keys still go to the old partition
    fence "route" in the old partition                         appends that know no seal are refused there
    `MoveSealed` with the end offset behind the fence          the keys go to the new partition

Each step is idempotent, so after a kill between them another process finishes the work: the one that has the old
partition's broker, which looks for it every second, or one whose produce request is delayed by it. Any process may do
it, since the fence is in the log, and the first event counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from api.host.hosted_meta import HostedMeta
from api.host.hosted_topic import HostedTopic, Topics
from mq.errors import DeltaMQError
from mq.meta import Meta, MoveEvent, decide_seal
from mq.names import broker_of
from tables.failpoints import failpoint
from tables.log import ROUTE_FENCE

__all__ = ["Sealer"]

log = logging.getLogger("deltamq.api")

#: Retry interval of seals that failed.
_LOOK_S: Final = 1.0


class Sealer:
    """Seals the partitions whose keys expansions moved; used on the event loop."""

    def __init__(self, meta: HostedMeta, topics: Topics, hosts: Callable[[str], bool]) -> None:
        """`hosts` says whether this process has a broker."""
        self._meta = meta
        self._topics = topics
        self._hosts = hosts
        self._sealing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._timer = asyncio.get_running_loop().create_task(self._watch())
        meta.follow(self._follow)

    async def seal(self, topic: HostedTopic) -> None:
        """Seal all that waits in a topic, whatever process has its brokers; what fails is tried again later."""
        sources = self._meta.now.moved_keys(topic.topic.id).waiting
        tasks = [self._start(topic, source) for source in sorted(sources)]
        if tasks:
            # Not `gather`: a client that goes away must not cancel tasks for which other requests wait.
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """Stop looking, and wait for the seals under way."""
        self._timer.cancel()
        await asyncio.gather(self._timer, *self._sealing.values(), return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(_LOOK_S)

    def _follow(self, _: Meta, __: Meta) -> None:
        self._look()

    def _look(self) -> None:
        """Begin to seal the waiting partitions of this process's brokers."""
        meta = self._meta.now
        waiting = {topic_id: moved.waiting for topic_id, moved in meta.moved.items() if moved.waiting}
        for topic in meta.topics.topics.values() if waiting else ():
            mine = {source for source in waiting.get(topic.id, ()) if self._hosts(broker_of(source))}
            hosted = self._topics.find(topic.name) if mine else None
            if hosted is not None:
                for source in sorted(mine):
                    self._start(hosted, source)

    def _start(self, topic: HostedTopic, source: str) -> asyncio.Task[None]:
        """Return the one task that seals a partition; start it if there is none."""
        key = topic.topic.id, source
        task = self._sealing.get(key)
        if task is None:
            task = self._sealing[key] = asyncio.get_running_loop().create_task(self._seal(topic, source))
            task.add_done_callback(lambda _: self._sealing.pop(key))
        return task

    async def _seal(self, topic: HostedTopic, source: str) -> None:
        """Seal the moves from a partition, oldest first."""
        try:
            while waiting := self._meta.now.moved_keys(topic.topic.id).unsealed(source):
                epoch = waiting[0]
                opened = await topic.partition(source).opened()
                end_offset = await topic.run(partial(opened.fence, ROUTE_FENCE, epoch))
                failpoint("seal.after_fence")
                await self._meta.submit_any(partial(_decide, topic.topic.id, source, epoch, end_offset))
                failpoint("seal.after_event")
                log.info("event=keys_sealed partition=%s epoch=%d end_offset=%d", source, epoch, end_offset)
        except DeltaMQError as error:
            log.warning("event=seal_failed partition=%s code=%s detail=%r", source, error.code, error.detail)


def _decide(topic_id: str, source: str, epoch: int, end_offset: int, meta: Meta) -> Sequence[MoveEvent]:
    return decide_seal(meta.moved_keys(topic_id), topic_id, source, epoch, end_offset)
