"""What processes tell each other of a pull lock when its logical queue has moved from one to the other (SPEC ORDER-5).

    lock refused, or a release of an unknown lock --> new leader's process --GET locks--> previous leader's process
                                                                           <--account---- (it knows of the move now)

Without an answer, the new process waits until every client that may hold the lock has claimed or lost it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final
from urllib.parse import quote

from deltamq.api.host.peer_json import json_of
from deltamq.api.host.peers import Call, Peers
from deltamq.api.wire.answer import Header
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.order.pull_lock import LockAccount
from deltamq.mq.queue.checkpoint import LaneKey

#: Seconds for the answer: a process that is well answers in milliseconds. A client that wants the lock asks again.
_WITHIN_S: Final = 1.0
_OK: Final = 200


class LockAccounts:
    """Asks other processes for locks, for each lock once at a time; used on the event loop."""

    def __init__(self, peers: Peers, here: Callable[[str, str, LaneKey], Awaitable[LockAccount]]) -> None:
        """`here` returns the account of a broker of this process: by the broker, the topic's name and the lane."""
        self._peers = peers
        self._here = here
        self._asking: dict[LaneKey, asyncio.Task[LockAccount | None]] = {}

    async def of(self, broker: str, topic: str, lane: LaneKey, headers: Collection[Header]) -> LockAccount | None:
        """Return what the process of `broker` knows of the lock; None if it does not answer.

        `headers` are those of the client's request, for which it is asked.
        """
        asking = self._asking.get(lane)
        if asking is None:
            asking = self._asking[lane] = asyncio.ensure_future(self._ask(broker, topic, lane, headers))
            asking.add_done_callback(lambda _: self._asking.pop(lane, None))
        # The others that wait go on if this one's client leaves.
        return await asyncio.shield(asking)

    async def _ask(self, broker: str, topic: str, lane: LaneKey, headers: Collection[Header]) -> LockAccount | None:
        path = f"/v1/groups/{quote(lane.group, safe='')}/topics/{quote(topic, safe='')}/locks"
        query = f"?partition={quote(lane.partition, safe='')}&broker={quote(broker, safe='')}"
        call = Call.on_behalf("GET", path + query, headers)._replace(timeout_s=_WITHIN_S)
        try:
            peer = self._peers.of(broker, call)
            if peer is None:
                return await self._here(broker, topic, lane)
            answer = await self._peers.ask(*peer, call)
            return json_of(answer.body, LockAccount) if answer.status == _OK else None
        except DeltaMQError:
            return None
