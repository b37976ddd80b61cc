"""Pops of global topics: through any cluster, from whichever has messages (SPEC STATIC-19).

    pop --acks to the clusters that gave the handles--> this cluster and the others, in any order, without a wait
        <--the first messages that one has-------------
        --none, wait_ms left--> each in turn again, and each waits a little

A queue's messages are popped where they lie, after any remapping: there are its checkpoints, there they are delivered
again, and the handles say so. One cluster at a time is asked: two that wait for one pop would both hide messages. A
pop that begins anywhere keeps no cluster's messages waiting while another one always has some.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from deltamq.api.host.clusters import Clusters, away
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peers import Call
from deltamq.api.queue.popper import Popped
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.request import Admission, Client
from deltamq.mq.errors import DeltaMQError, Overloaded, Unavailable, Unknown
from deltamq.mq.limits import MESSAGE_BYTES_MAX
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.wire.pop import PopRequest

#: Milliseconds in which each cluster gets its turn while a pop waits.
_TURNS_MS: Final = 1_000
#: Seconds for which another cluster may take to answer, beside what it waits for messages.
_ANSWER_S: Final = 5.0
#: Seconds for which a cluster that could not be reached is not asked again: the others' messages do not wait for it.
_AWAY_S: Final = 2.0
_OK: Final = 200


class GlobalPops:
    """Pops from one cluster after another; used on the event loop."""

    def __init__(
        self,
        clusters: Clusters,
        is_found: Callable[[Popped | Answer], bool],
        is_stopping: Callable[[], bool],
        answers: Admission,
    ) -> None:
        """`is_found` tells whether a pop has found messages. While it `is_stopping`, the service lets none wait.

        `answers` bounds what other clusters send: none is asked for messages that there is no room for.
        """
        self._answers = answers
        self._clusters = clusters
        self._is_found = is_found
        self._is_stopping = is_stopping
        self._loop = asyncio.get_running_loop()
        #: Until when clusters that could not be reached are not asked.
        self._away: dict[str, float] = {}

    async def pop(
        self,
        world: GlobalQueues,
        request: PopRequest,
        call: Call,
        client: Client,
        here: Callable[[int], Awaitable[Popped | Answer]],
    ) -> Popped | Answer:
        """Return the first messages that a cluster has; `here` pops in this one, for so many milliseconds.

        A cluster that is away is passed over. Any other error of one is raised if no cluster has messages.

        Raises
        ------
        Unavailable
            No cluster can be asked.
        """
        deadline = self._loop.time() + (request.wait_ms or 0) / 1000
        clusters = random.sample(world.clusters, len(world.clusters))
        waits = False
        while True:
            empty, failure = None, None
            for cluster in clusters:
                left_ms = max(0, int((deadline - self._loop.time()) * 1000))
                wait_ms = min(left_ms, _TURNS_MS // len(clusters)) if waits else 0
                try:
                    found = await (
                        here(wait_ms)
                        if cluster == world.here
                        else self._there(cluster, world.epoch, request, call, wait_ms)
                    )
                except DeltaMQError as error:
                    failure = failure if _is_away(error) and failure is not None else error
                    continue
                if self._is_found(found):
                    return found
                empty = found
            if failure is not None and (empty is None or not _is_away(failure)):
                raise failure
            assert empty is not None, "some cluster has answered"
            if self._loop.time() >= deadline or client.gone.done() or self._is_stopping():
                return empty
            waits = True

    async def _there(self, cluster: str, epoch: int, request: PopRequest, call: Call, wait_ms: int) -> Answer:
        """Return what another cluster answers; a pop that is under way there is not cancelled, as it hides messages."""
        if self._loop.time() < self._away.get(cluster, 0.0):
            raise away(cluster, "a moment ago it did not answer")
        body = msgspec.json.encode(msgspec.structs.replace(request, ack=[], wait_ms=wait_ms))
        self._answers.check_room(MESSAGE_BYTES_MAX)
        asked = call.with_json(body)._replace(timeout_s=_ANSWER_S + wait_ms / 1000)
        try:
            answer = await self._clusters.ask(cluster, asked, epoch=epoch)
        except (Unavailable, Unknown):
            self._away[cluster] = self._loop.time() + _AWAY_S
            raise
        if answer.status != _OK:
            raise Relayed.of(answer)
        return answer


def _is_away(error: DeltaMQError) -> bool:
    """Whether a cluster cannot be asked at the moment."""
    return error.status in (Overloaded.status, Unavailable.status)
