"""Fetches and pops of global topics: here, or in the cluster that has the messages (SPEC STATIC-13, 14, 19).

    global offset --stay--> this cluster: a read of the cluster's own queue, answered in global offsets
                        --> another one:  the same fetch there, whose answer is passed on

One answer never crosses a stay, as it never crosses a segment. At the end of a stay `next_offset` leads to the next.
`min_offset` and `max_offset` are exact if the queue begins and ends in the cluster that answers; else they are bounds
from the copy, which the queue is known to reach.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from deltamq.api.host.clusters import Clusters, away, from_cluster, global_epoch_of
from deltamq.api.host.global_copies import GlobalCopies
from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peers import Call, unreadable
from deltamq.api.queue.popper import Popped
from deltamq.api.reading.readers import FetchQuery, QueueReader
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.request import Admission, Client
from deltamq.mq.errors import DeltaMQError, Overloaded, Unavailable, Unknown
from deltamq.mq.limits import MESSAGE_BYTES_MAX
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.queue_names import queue_name
from deltamq.mq.static.segments import Stay
from deltamq.mq.wire.pop import PopRequest
from deltamq.tables.log.fetch import Fetched, FetchStatus
from deltamq.tables.schema import MESSAGE_SCHEMA

#: Most milliseconds for which a read waits before it checks whether its queue has moved.
_LOOK_MS: Final = 500
#: The parameters of an event stream's fetch at another cluster, and the form of its answer.
_OWN: Final = (b"offset", b"max_messages", b"max_bytes", b"wait_ms")
_ARROW: Final = b"application/vnd.apache.arrow.stream"
#: Statuses from here on are problems.
_NOT_DONE: Final = 300
#: Seconds within which two clusters must agree where the offset lies.
_AGREED_S: Final = 2.0


class GlobalReader:
    """Reads the queues of global topics; used on the event loop."""

    def __init__(self, queues: QueueReader, copies: GlobalCopies) -> None:
        self._queues = queues
        self._copies = copies
        self._clusters: Clusters = copies.clusters

    async def read(
        self, topic: HostedTopic, queue: int, query: FetchQuery, call: Call, client: Client
    ) -> Fetched | Answer:
        """Read the queue from the global offset `query.offset` on; an `Answer` comes from another cluster.

        Raises
        ------
        Unavailable
            `queue_unserved`: the cluster where the offset lies cannot be reached. Nothing is skipped.
        """
        self._clusters.refuse_guarded(topic.name)
        if from_cluster(call.headers):
            await self._copies.caught_up(topic.name, global_epoch_of(call.headers))
        return await self._copies.agreed(
            topic.name, partial(self._tried, topic, queue, query, call, client), within_s=_AGREED_S
        )

    async def rows(self, topic: HostedTopic, queue: int, query: FetchQuery, *, call: Call, client: Client) -> Fetched:
        """Read the queue as `read` does, for an event stream: messages of another cluster are fetched as rows.

        Raises
        ------
        Relayed
            The other cluster's problem.
        """
        answer = await self.read(topic, queue, query, _as_fetch(call, query), client)
        return answer if isinstance(answer, Fetched) else _fetched(answer)

    async def _tried(
        self, topic: HostedTopic, queue: int, query: FetchQuery, call: Call, client: Client
    ) -> Fetched | Answer | Unavailable:
        """Read where the offset lies; return `Unavailable` if the cluster there has a newer copy."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + query.wait_ms / 1000
        while True:
            world = self._copies.world(topic)
            stay, _ = world.place(queue, query.offset)
            if stay.cluster != world.here:
                detail = f"the offset {query.offset} is in cluster {stay.cluster}"
                return await self._copies.elsewhere(topic.name, stay.cluster, call, detail, client)
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            read = await self._here(topic, queue, replace(query, wait_ms=min(left_ms, _LOOK_MS)), client)
            if read.status is not FetchStatus.NO_NEW_MESSAGE or left_ms <= _LOOK_MS or self._queues.stopping:
                return read
            query = replace(query, offset=read.next_offset)

    async def _here(self, topic: HostedTopic, queue: int, query: FetchQuery, client: Client) -> Fetched:
        world = self._copies.world(topic)
        stay, local = world.place(queue, query.offset)
        if query.offset < _begin(world, queue):  # older stays are forgotten, with their messages
            query = replace(query, offset=_begin(world, queue))
            raw = await self._queues.read(topic, queue_name(queue), replace(query, offset=local, wait_ms=0), client)
            read = shown(world, queue, stay, raw)
            empty = MESSAGE_SCHEMA.empty_table()
            return Fetched(FetchStatus.OFFSET_TOO_SMALL, empty, read.min_offset, read.min_offset, read.max_offset)
        if stay.is_ended and local >= stay.local_end:  # the next stay has no offsets yet
            end = stay.logic_end
            status = FetchStatus.OFFSET_TOO_LARGE if query.offset > end else FetchStatus.NO_NEW_MESSAGE
            return Fetched(status, MESSAGE_SCHEMA.empty_table(), end, _begin(world, queue), end)
        raw = await self._queues.read(topic, queue_name(queue), replace(query, offset=local), client)
        # The queue may have left meanwhile.
        return shown(self._copies.world(topic), queue, stay, raw)


def _as_fetch(call: Call, query: FetchQuery) -> Call:
    path, _, given = call.target.partition(b"?")
    kept = [pair for pair in given.split(b"&") if pair and pair.partition(b"=")[0] not in _OWN]
    values = (query.offset, query.max_messages, query.max_bytes, query.wait_ms)
    kept += [b"%s=%d" % pair for pair in zip(_OWN, values, strict=True)]
    headers = [header for header in call.headers if header[0] not in (b"accept", b"last-event-id")]
    return call._replace(
        target=path + b"?" + b"&".join(kept),
        headers=[*headers, (b"accept", _ARROW)],
        timeout_s=call.timeout_s + query.wait_ms / 1000,
    )


def _fetched(answer: Answer) -> Fetched:
    if answer.status >= _NOT_DONE:
        raise Relayed.of(answer)
    assert isinstance(answer.body, bytes), "answers of other clusters are whole"
    fields = dict(answer.headers)
    try:
        with pa.ipc.open_stream(answer.body) as reader:
            rows = reader.read_all()
        next_offset, low, end = (int(fields[b"mq-" + name]) for name in (b"next-offset", b"min-offset", b"max-offset"))
        return Fetched(FetchStatus(fields[b"mq-status"].decode()), rows, next_offset, low, end)
    except (KeyError, ValueError, OSError) as error:  # Arrow raises the last two
        raise unreadable(answer.status) from error


def _begin(world: GlobalQueues, queue: int) -> int:
    return world.queues[queue][0].logic_offset


def shown(world: GlobalQueues, queue: int, stay: Stay, fetched: Fetched) -> Fetched:
    """Return a read of a stay of this cluster in global offsets."""
    present = (at for at in world.queues[queue] if (at.cluster, at.start_ms) == (stay.cluster, stay.start_ms))
    stay = next(present, stay)  # a stay may be forgotten meanwhile
    rows, at, status = fetched.rows, fetched.next_offset, fetched.status
    if stay.is_ended:
        rows, at = rows.filter(pc.less(rows.column("offset"), stay.local_end)), min(at, stay.local_end)
    is_over = stay.is_ended and at >= stay.local_end and stay in world.queues[queue]
    following = world.after(queue, stay) if is_over else None
    first, newest = world.queues[queue][0], world.readable(queue)[-1]
    low = first.shown(fetched.min_offset) if first.cluster == world.here else first.logic_offset
    if status is FetchStatus.OFFSET_TOO_SMALL and stay is not first:
        status = FetchStatus.NO_NEW_MESSAGE  # only the earliest stay answers so (SPEC STATIC-14)
    elif status is FetchStatus.FOUND and not rows.num_rows:
        status = FetchStatus.NO_NEW_MESSAGE
    rows = rows.set_column(
        rows.schema.get_field_index("offset"),
        rows.schema.field("offset"),
        pc.add(rows.column("offset"), stay.logic_offset - stay.local_start),
    )
    end = newest.shown(fetched.max_offset) if newest.cluster == world.here else newest.logic_offset
    if newest.is_ended:
        end = newest.logic_end
    return Fetched(status, rows, stay.shown(at) if following is None else following.logic_offset, low, end)


#: Milliseconds within which each cluster has one turn while a pop waits.
_TURNS_MS: Final = 1_000
#: Seconds that another cluster may take to answer, beside its wait for messages.
_ANSWER_S: Final = 5.0
#: Seconds for which a cluster that could not be reached is not asked again: the others' messages do not wait for it.
_AWAY_S: Final = 2.0
_OK: Final = 200


class GlobalPops:
    """Pops from one cluster after another; used on the event loop.

        pop --acks to the clusters that gave the handles--> this cluster and the others, in any order, without a wait
            <--the first messages that one has-------------
            --none, wait_ms left--> each in turn again, and each waits a little

    A queue's messages are popped where they lie, after any remapping: there are its checkpoints, there they are
    delivered again, and the handles say so. Clusters are asked one at a time: two that wait for one pop would both hide
    messages. Each pop begins at a random cluster, so that none's messages wait while another always has some.
    """

    def __init__(
        self,
        clusters: Clusters,
        is_found: Callable[[Popped | Answer], bool],
        is_stopping: Callable[[], bool],
        answers: Admission,
    ) -> None:
        """`is_found` returns whether a pop has messages. While the service `is_stopping`, no pop waits.

        `answers` bounds the answers of other clusters: none is asked without room for its messages.
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
        """Return the first messages that a cluster has; `here` pops in this one, and waits for so many milliseconds.

        A cluster that is away is skipped. Any other error of a cluster is raised if no cluster has messages.

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
                    popped = await (
                        here(wait_ms)
                        if cluster == world.here
                        else self._there(cluster, world.epoch, request, call, wait_ms)
                    )
                except DeltaMQError as error:
                    failure = failure if _is_away(error) and failure is not None else error
                    continue
                if self._is_found(popped):
                    return popped
                empty = popped
            if failure is not None and (empty is None or not _is_away(failure)):
                raise failure
            assert empty is not None, "some cluster has answered"
            if self._loop.time() >= deadline or client.has_left() or self._is_stopping():
                return empty
            waits = True

    async def _there(self, cluster: str, epoch: int, request: PopRequest, call: Call, wait_ms: int) -> Answer:
        """Pop at another cluster; a pop under way there is not cancelled, as it hides messages."""
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
    return error.status in (Overloaded.status, Unavailable.status)
