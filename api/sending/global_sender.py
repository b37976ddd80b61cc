"""Sends to global topics: here, or forwarded to the cluster that takes the queue's messages (SPEC STATIC-19, 21, 22).

    request --queue is here--> RequestAppender, by the cluster's own names and offsets --> answer in global offsets
            --is elsewhere---> the same request to that cluster, whose answer is passed on
            --moves `strict`-> wait for the home's decision, then as above
            --is for several-> to each cluster with the numbers of its queues, and one answer of all

A cluster that a queue has left remembers the requests that it stored. So a repeated request of an idempotent producer
is looked for there before it is stored again. That cluster stores no more of the queue, so it is asked only once which
numbers it remembers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import NDArray

from deltamq.api.host.clusters import Clusters, from_cluster, global_epoch_of
from deltamq.api.host.global_copies import GlobalCopies, RememberedNumbers, global_path
from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peers import Call, json_of
from deltamq.api.sending.logical_places import LedElsewhere
from deltamq.api.sending.request_appender import RequestAppender
from deltamq.api.sending.store_request import StoreRequest
from deltamq.api.wire.answer import Answer, Header
from deltamq.api.wire.rows import Named
from deltamq.mq.errors import DeltaMQError, NotFound, Refused, Unavailable, Unprocessable
from deltamq.mq.limits import PRODUCERS_MAX
from deltamq.mq.meta.global_topics import require_world
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.queue_names import global_queue_index, global_queue_name, queue_index, queue_name
from deltamq.mq.wire.produce import ProduceAnswer, Producer
from deltamq.tables.log.stored_requests import REMEMBERED_MS

#: Asks a cluster that a queue has left only where a request is stored.
STORED_ONLY: Final = b"mq-stored-only"
#: The queues whose messages the receiver stores; the rest of the request is stored elsewhere.
ONLY_QUEUES: Final = b"mq-only-queues"
#: Seconds to wait for a queue that moves.
_MOVING_S: Final = 15.0


class GlobalSender:
    """Stores the requests of global topics; used on the event loop."""

    def __init__(self, appender: RequestAppender, copies: GlobalCopies) -> None:
        self._appender = appender
        self._copies = copies
        self._clusters: Clusters = copies.clusters
        #: The numbers that a cluster remembers of a producer: by topic, cluster, producer, and start of the stay.
        self._remembered: OrderedDict[tuple[str, str, str, int], frozenset[int]] = OrderedDict()

    async def append(self, topic: HostedTopic, request: StoreRequest, call: Call) -> Answer:
        """Store a request in the clusters that take its messages, and return the answer with global offsets.

        Raises
        ------
        Unavailable
                `queue_unserved`: the cluster that takes the messages cannot be reached, or, if a cluster forwarded the
                request, this cluster does not take them. `logic_offset_undecided`: a queue is still moving.
        """
        self._clusters.refuse_guarded(topic.name)
        local = _local(topic, request)
        if from_cluster(call.headers):
            await self._copies.caught_up(topic.name, global_epoch_of(call.headers))
        else:  # these headers are only for clusters
            call = call._replace(headers=[pair for pair in call.headers if pair[0] not in (STORED_ONLY, ONLY_QUEUES)])
        only = _only(call.headers)
        if only is not None:
            bound = self._appender.bound_queues(topic, local)
            meant = np.flatnonzero(np.isin(bound, only))
            if not meant.size:
                raise Refused("Mq-Only-Queues: no message goes there", field="Mq-Only-Queues")
            local = replace(local, only=meant)
        if any(name == STORED_ONLY for name, _ in call.headers):
            return await self._stored(topic, local)
        return await self._copies.agreed(
            topic.name, partial(self._tried, topic, local, call, Sent()), within_s=_MOVING_S
        )

    async def _tried(self, topic: HostedTopic, request: StoreRequest, call: Call, sent: Sent) -> Answer | Unavailable:
        """Return the answer; or `Unavailable` while a queue moves or this cluster's copy is old."""
        clusters = {} if from_cluster(call.headers) else self._clusters_of(topic, request, sent)
        if isinstance(clusters, Unavailable):
            return clusters
        if not sent.answers and self._is_for_one(clusters):
            return await self._to_one(topic, request, call)
        outcomes = await asyncio.gather(
            *(self._part(topic, request, call, cluster, queues, sent) for cluster, queues in clusters.items())
        )
        moved = next((outcome for outcome in outcomes if isinstance(outcome, Moved)), None)
        for error in outcomes:
            if error is not None and not isinstance(error, Moved):
                raise sent.with_stored(error)
        return sent.answer(request) if moved is None else sent.with_stored(moved)

    def _is_for_one(self, clusters: Mapping[str, frozenset[int]]) -> bool:
        """Whether one cluster gets the request as it is; messages that may go anywhere must not go to a third one."""
        if len(clusters) != 1:
            return not clusters
        ((cluster, queues),) = clusters.items()
        return cluster == self._clusters.here or FREE not in queues

    def _clusters_of(
        self, topic: HostedTopic, request: StoreRequest, sent: Sent
    ) -> dict[str, frozenset[int]] | Unavailable:
        """Return the queues of a request by the clusters that take them, without stored ones.

        FREE stands for messages that may go to any queue: they go to this cluster, if it takes any.
        """
        world = self._copies.world(topic)
        if not sent.answers and (request.body.rows.count == 1 or isinstance(request.named, str) or not world.away):
            return {}
        bound = self._appender.bound_queues(topic, request)
        queues_at: dict[str, set[int]] = {}
        for queue in sorted({*map(int, np.unique(bound))} - sent.queues - {FREE}):
            taker = world.taker(queue)
            if taker is None:
                return LedElsewhere.of(topic.name, queue, None)
            queues_at.setdefault(taker, set()).add(queue)
        if FREE not in sent.queues and (bound == FREE).any():
            is_open_here = len(world.away) < len(world.queues)
            queues_at.setdefault(world.here if is_open_here or not queues_at else min(queues_at), set()).add(FREE)
        return {cluster: frozenset(queues) for cluster, queues in queues_at.items()}

    async def _part(
        self, topic: HostedTopic, request: StoreRequest, call: Call, cluster: str, queues: frozenset[int], sent: Sent
    ) -> DeltaMQError | None:
        only = b",".join(b"%d" % queue for queue in sorted(queues))
        part = call._replace(headers=[*call.headers, (ONLY_QUEUES, only)])
        try:
            if cluster == self._clusters.here:
                meant = np.flatnonzero(np.isin(self._appender.bound_queues(topic, request), sorted(queues)))
                answer = await self._to_one(topic, replace(request, only=meant), part)
            else:
                answer = await self._copies.elsewhere(topic.name, cluster, part, f"a queue is in cluster {cluster}")
            if isinstance(answer, Unavailable):
                return Moved(answer.detail, extra=answer.extra)
            sent.add(queues, stored_by(answer))
        except DeltaMQError as error:
            return error
        return None

    async def _to_one(self, topic: HostedTopic, request: StoreRequest, call: Call) -> Answer | Unavailable:
        """Store a request here, or have it stored by the one other cluster that takes its messages."""
        try:
            earlier: list[ProduceAnswer] = []
            if request.body.producer is not None:
                earlier = await self._repeated(topic, request, request.body.producer, call)
            left = left_of(request, earlier)
            if not left.size:
                return _json(merged(earlier, request))
            if earlier:
                request = replace(request, only=left)
            done = self._shown(topic, await self._appender.append(topic, request))
            return _json(merged([*earlier, done], request) if earlier else done)
        except LedElsewhere as error:
            if error.cluster is None:
                return error
            return await self._copies.elsewhere(topic.name, error.cluster, call, error.detail)

    async def _repeated(
        self, topic: HostedTopic, request: StoreRequest, producer: Producer, call: Call
    ) -> list[ProduceAnswer]:
        """Return the answers of clusters that stored a repeated request before its queues came here.

        Raises
        ------
        LedElsewhere
            As `append` does; also while the cluster that a queue leaves may still store messages of it.
        """
        world = self._copies.world(topic)
        if all(len(stays) == 1 for stays in world.queues):
            return []
        answers: list[ProduceAnswer] = []
        asked: set[str] = set()
        for queue in sorted(self._appender.queues_of(topic, request)):
            if not world.queues[queue][-1].is_decided:
                raise LedElsewhere.of(topic.name, queue, None)
            for cluster in world.earlier(queue, request.now_ms - REMEMBERED_MS):
                key = (world.id, cluster, producer.id, world.queues[queue][-1].start_ms)
                if cluster not in asked and producer.seq in await self._numbers(topic.name, world, key):
                    asked.add(cluster)
                    part = call._replace(headers=[*call.headers, (STORED_ONLY, b"1")])
                    answer = await self._clusters.ask(cluster, part, epoch=world.epoch)
                    if answer.status != NotFound.status:
                        answers.append(stored_by(answer))
        return answers

    async def _numbers(self, topic: str, world: GlobalQueues, key: tuple[str, str, str, int]) -> frozenset[int]:
        known = self._remembered.get(key)
        if known is None:
            _, cluster, producer_id, _ = key
            path = global_path(topic, f"/global/producers/{quote(producer_id, safe='')}")
            body = await self._clusters.ask_body(cluster, Call("GET", path, (), b""), epoch=world.epoch)
            known = self._remembered[key] = frozenset(json_of(body, RememberedNumbers).numbers)
            if len(self._remembered) > PRODUCERS_MAX:
                self._remembered.popitem(last=False)
        return known

    async def _stored(self, topic: HostedTopic, request: StoreRequest) -> Answer:
        """Return where messages of a request are stored here; raise `NotFound` if none is."""
        if request.body.producer is None:
            raise Unprocessable("producer: only an idempotent request can be looked for", field="producer")
        stored = await self._appender.stored(topic, request)
        if stored is None:
            raise NotFound("this request is not stored here", code="request_not_found")
        return _json(self._shown(topic, stored))

    def _shown(self, topic: HostedTopic, answer: ProduceAnswer) -> ProduceAnswer:
        world = self._copies.world(topic)
        for placed in answer.ranges:
            index = queue_index(placed.partition)
            assert index is not None, "the ranges of a static topic name its queues"
            placed.partition = global_queue_name(index)
            if placed.base_offset >= 0:
                placed.base_offset = world.shown(index, placed.base_offset)
        return answer


def _only(headers: Collection[Header]) -> list[int] | None:
    """Return the queues that another cluster names; None for all."""
    value = next((value for name, value in headers if name == ONLY_QUEUES), None)
    if value is None:
        return None
    try:
        return [int(number) for number in value.split(b",") if number]
    except ValueError:
        raise Refused("Mq-Only-Queues: numbers of queues, with commas", field="Mq-Only-Queues") from None


def _json(answer: ProduceAnswer) -> Answer:
    return Answer.of_json(msgspec.json.encode(answer))


def _local(topic: HostedTopic, request: StoreRequest) -> StoreRequest:
    """Return the request with the cluster's own names of queues; refuse a delay, which global topics lack."""
    if request.body.times is not None:
        raise _unsupported(topic, "a delay", "deliver_time")
    return replace(request, named=_named(topic, request.named))


def _unsupported(topic: HostedTopic, what: str, field: str) -> Unprocessable:
    detail = f"topic {topic.name} is global, so it has no {what}"
    return Unprocessable(detail, code="global_unsupported", field=field)


def _named(topic: HostedTopic, named: Named) -> Named:
    if named is None:
        return None
    if isinstance(named, str):
        return local_name(topic, named)
    names = named.to_pylist() if isinstance(named, pa.Array) else named
    return [None if name is None else local_name(topic, name) for name in names]


def local_name(topic: HostedTopic, name: str) -> str:
    """Return the cluster's own name of a global topic's queue.

    Raises
    ------
    NotFound
        `partition_not_found`: the topic has no such queue.
    Unprocessable
        `physical_partition`: a cluster's own queue or partition was named.
    """
    index, total = global_queue_index(name), len(require_world(topic.topic).queues)
    if index is not None and index < total:
        return queue_name(index)
    own = queue_index(name)
    if own is not None and own < total:
        raise Unprocessable(
            f"partition: topic {topic.name} is global, and {name!r} is its queue in only one cluster; name"
            f" {global_queue_name(own)}",
            code="physical_partition",
            field="partition",
            extra={"partition": global_queue_name(own)},
        )
    raise NotFound(
        f"partition: topic {topic.name} has no partition {name!r}", code="partition_not_found", field="partition"
    )


#: Stands for the queue of messages that may go to any.
FREE: Final = -1
#: Statuses from here on are problems.
_NOT_DONE: Final = 300
Error = TypeVar("Error", bound=DeltaMQError)


class Moved(Unavailable):
    """Nothing of a part was stored: its queue moves, or it was sent by an old copy; it is sent again."""

    code = "queue_unserved"


class Sent(msgspec.Struct):
    """The parts of one request that are stored."""

    answers: list[ProduceAnswer] = msgspec.field(default_factory=list)
    #: The queues of these parts; FREE for messages that could go anywhere.
    queues: set[int] = msgspec.field(default_factory=set)

    def add(self, queues: Collection[int], answer: ProduceAnswer) -> None:
        """Note that the messages of these queues are stored."""
        self.queues.update(queues)
        self.answers.append(answer)

    def answer(self, request: StoreRequest) -> Answer:
        """Return the answer when all parts are stored."""
        return Answer.of_json(msgspec.json.encode(merged(self.answers, request)))

    def with_stored(self, error: Error) -> Error:
        """Return an error that also shows the stored ranges of the request."""
        ranges = [stored for answer in self.answers for stored in answer.ranges]
        if ranges:
            error.extra = {**error.extra, "stored": msgspec.to_builtins(ranges)}
        return error


def stored_by(answer: Answer) -> ProduceAnswer:
    """Return the answer of a cluster that stored messages; raise the problem that it answered with."""
    if answer.status >= _NOT_DONE:
        raise Relayed.of(answer)
    return json_of(answer.body, ProduceAnswer)


def left_of(request: StoreRequest, answers: Sequence[ProduceAnswer]) -> NDArray[np.int64]:
    """Return the indexes of wanted messages that are in no answer."""
    wanted = np.arange(request.body.rows.count) if request.only is None else request.only
    for placed in (placed for answer in answers for placed in answer.ranges):
        wanted = wanted[:0] if placed.indexes is UNSET else wanted[~np.isin(wanted, placed.indexes)]
    return wanted


def merged(answers: Sequence[ProduceAnswer], request: StoreRequest) -> ProduceAnswer:
    """Return one answer for the answers of several clusters, each about some messages of the request."""
    parts = [(placed, _is_duplicate(placed.duplicate, answer)) for answer in answers for placed in answer.ranges]
    is_all = all(duplicate for _, duplicate in parts)
    for placed, duplicate in parts:
        placed.duplicate = True if duplicate and not is_all else UNSET
    whole = ProduceAnswer(
        [placed for placed, _ in parts],
        any(duplicate for _, duplicate in parts),
        all(answer.durable for answer in answers),
    )
    if request.want_ids:
        ids = [""] * request.body.rows.count
        for answer in answers:
            for at, message_id in enumerate(answer.message_ids or ()):
                ids[at] = message_id or ids[at]
        whole.message_ids = ids
    return whole


def _is_duplicate(flag: object, answer: ProduceAnswer) -> bool:
    """Whether a range is of an earlier copy; the flag is missing if all ranges of its answer are."""
    return flag is True or (answer.duplicate and all(placed.duplicate is UNSET for placed in answer.ranges))
