"""Commits of clients in lanes, which may be those of several processes: each is stored by the process that serves it.

lanes --by broker--> ours: stored here     theirs: sent on as commits of their partitions     --> one result
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from deltamq.api.host.hosting import Hosting
from deltamq.api.host.owners import Owners, together
from deltamq.api.host.peers import Call, Peer
from deltamq.api.queue.lanes import Lanes
from deltamq.api.wire.answer import Header
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed
from deltamq.mq.wire.groups import CommitRequest

#: Header of a commit that another process forwards: the offsets are where the group begins.
_BEGINS: Final = b"mq-begins"
_NO_TEXTS: Final[Mapping[str, str]] = {}


def is_begin(headers: Collection[Header]) -> bool:
    """Whether a commit says where the group begins, and not what it has consumed."""
    return any(name == _BEGINS for name, _ in headers)


class LaneCommits:
    """Stores commits of clients; used on the event loop."""

    def __init__(self, lanes: Lanes, hosting: Hosting, owners: Owners) -> None:
        self._lanes = lanes
        self._hosting = hosting
        self._owners = owners

    async def here(
        self,
        topic: str,
        lanes: Mapping[LaneKey, int],
        epochs: Mapping[str, int],
        attempts: Mapping[str, int],
        *,
        metadata: Mapping[str, str] = _NO_TEXTS,
        begins: bool = False,
    ) -> dict[str, Committed]:
        """Store commits in lanes of this process; `epochs` that are meant, `attempts` and `metadata` are by partition.

        With `begins`, the offsets are where the group begins, and do not count as consumption.

        Raises
        ------
        Unavailable
            A broker is not ours, or was lost meanwhile.
        DeltaMQError
            What `Lanes.commit` raises.
        """
        held = {broker: self._hosting.epoch(broker) for broker in {broker_of(one.partition) for one in lanes}}

        def commit(lane: LaneKey, offset: int) -> Awaitable[Committed]:
            name = lane.partition
            tried, text = attempts.get(name, 0), metadata.get(name, "")
            return self._lanes.commit(lane, topic, offset, epochs.get(name), attempts=tried, metadata=text)

        done = await together([commit(lane, at) for lane, at in lanes.items()])
        for broker, epoch in held.items():
            self._hosting.check(broker, epoch)
        now_ms = self._lanes.logs.now_ms()
        for lane in () if begins else lanes:
            self._lanes.consumed(lane, now_ms)
        return {lane.partition: committed for lane, committed in zip(lanes, done, strict=True)}

    async def there(self, peer: Peer, call: Call, asked: CommitRequest) -> dict[str, Committed]:
        """Let another process commit `asked`, which is a part of what `call` asks."""
        answer = await self._owners.ask(peer, call._replace(body=msgspec.json.encode(asked)))
        return {name: Committed(answer["epochs"][name], at) for name, at in answer["offsets"].items()}

    async def begin(
        self, topic: str, lane: LaneKey, offset: int, *, found_again: bool, headers: Collection[Header]
    ) -> None:
        """Store where a group begins in a lane of any process.

        It is durable when this returns, unless it is `found_again` after a crash; then it is stored soon, if the lane
        is ours, so that messages which retention takes from now on count as lost.
        """
        epoch = self._lanes.groups.epoch_of(lane)
        if epoch is not None and found_again and self._hosting.hosts(broker_of(lane.partition)):
            self._lanes.logs.offsets.note(lane, topic, Committed(epoch, offset))
            return
        await self.anywhere(topic, lane, offset, meant=None, attempts=0, headers=headers, begins=True)

    async def anywhere(
        self,
        topic: str,
        lane: LaneKey,
        offset: int,
        *,
        meant: int | None,
        attempts: int,
        headers: Collection[Header],
        metadata: str = "",
        begins: bool = False,
    ) -> Committed:
        """Store one commit in a lane of any process; `headers` are those of the client's request. `begins`: see `here`.

        `metadata`: see `decide_commit`.

        Another process takes the partition's name from this one only, so what clients may do is checked before.
        """
        name = lane.partition
        target = f"/v1/groups/{quote(lane.group, safe='')}/topics/{quote(topic, safe='')}/offsets"
        call = Call.on_behalf("PUT", target, [*headers, (_BEGINS, b"1")] if begins else headers)
        peer = self._owners.of(broker_of(name), call)
        epochs, tried = {} if meant is None else {name: meant}, {name: attempts} if attempts else {}
        texts = {name: metadata} if metadata else {}
        if peer is None:
            return (await self.here(topic, {lane: offset}, epochs, tried, metadata=texts, begins=begins))[name]
        asked = CommitRequest(
            offsets={name: offset}, epochs=epochs, attempts=tried, topic_id=lane.topic_id, metadata=texts or None
        )
        return (await self.there(peer, call, asked))[name]
