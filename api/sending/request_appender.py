"""Storing a produce request: place its messages, commit them, and answer with their offsets.

    request --placement--> shares --append--> stored ------------------------> {"ranges": ...}
                             ^                  | refused by a fence
                             '-- route again <--+ this process has read the newest metadata

A fence is put up when a broker changes hands, an ordered topic's keys move, or a logical queue is remapped (see
`tables.log.fences`). A share that it refuses is not stored and goes where it belongs now; stored parts of the request
stay where they are. Before an idempotent producer's share goes elsewhere, it is looked for there.

Clients of a static topic name logical queues and get logical offsets; no module below this one knows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from numpy.typing import NDArray

from deltamq.api.host.fences import AGAIN_S, FENCED_S, FenceCauses, Fencing, Sealer, passes
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.producers import brings_the_same, draw_of
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.log.parts import PendingRequest, RequestPart
from deltamq.api.queue.delays import Delays, split_shares
from deltamq.api.sending.commit_defaults import CommitDefaults
from deltamq.api.sending.logical_places import (
    LedElsewhere,
    expected_offset,
    repeated,
    sealed_parts,
    shown_error,
    shown_place,
    unsealed_before,
)
from deltamq.api.sending.store_request import StoreRequest, has_moved, place_of_share, routed, routed_again, stamp_of
from deltamq.api.wire.route_batch import PartitionShare, bound_to
from deltamq.api.wire.rows import Indexes
from deltamq.mq.errors import Conflict, Fenced, NotFound, Unavailable
from deltamq.mq.limits import FETCH_BYTES_MAX
from deltamq.mq.producer import Part as StoredPart
from deltamq.mq.static.queue_names import queue_index
from deltamq.mq.wire.produce import ProduceAnswer, Producer, Range
from deltamq.tables.log.batch import Appended
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.deliver_times import AT_ONCE
from deltamq.tables.queue.placement import FenceEpochs, Placement
from deltamq.tables.queue.redelivery_rows import producer_in_delay
from deltamq.tables.settings import Flush

#: Bytes above which a body is handled on a thread; for smaller ones the hand-over would cost more than the work.
INLINE_BYTES: Final = 64 * 1024
_REUSED: Final = "producer_sequence_reused"


class _Routed(NamedTuple):
    """The shares of a request, and the placement by which they were made."""

    places: Placement
    shares: Sequence[PartitionShare]
    #: The parts of the request in sealed segments, by partition: they are answered, not appended.
    kept: Mapping[str, Sequence[StoredPart]] = {}


class RequestAppender:
    """Appends produce requests to the partitions of their topics; used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        partitions: Partitions,
        delays: Delays,
        *,
        meta: HostedMeta,
        hosting: Hosting,
        fencing: Fencing,
        sealer: Sealer,
        defaults: CommitDefaults,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._delays = delays
        self._meta = meta
        self._hosting = hosting
        self._fencing = fencing
        self._sealer = sealer
        self._causes = FenceCauses(topics, meta, partitions, sealer)
        self._defaults = defaults
        self._loop = partitions.loop

    def window_of(self, topic: HostedTopic, request: StoreRequest) -> int:
        """Return how many milliseconds the request waits for others that share its commit."""
        return self._defaults.window_of(topic.settings, request.window_ms)

    def queues_of(self, topic: HostedTopic, request: StoreRequest) -> set[int]:
        """Return the logical queues to which an idempotent request's messages go now; raises as `append` does."""
        producer, places = request.body.producer, self._topics.placement(topic)
        assert producer is not None and places.queues is not None, "it has a number, and the topic is static"
        shares = routed(topic, request, places, draw_of(producer))
        queue_places = [places.queues.of_partition(share.partition) for share in shares]
        return {place.queue.index for place in queue_places if place is not None}

    async def stored(self, topic: HostedTopic, request: StoreRequest) -> ProduceAnswer | None:
        """Return where closed queues store messages of an idempotent request; None if they store none."""
        producer = request.body.producer
        assert producer is not None, "only requests with a number are repeated"
        await topic.gate.turn(producer)
        with topic.gate.claim(producer):
            by = await self._route_once(topic, replace(request, stored_only=True), producer, in_order=False)
            shares = [share for share in by.shares if share.partition in by.kept]
            if not shares:
                return None
            return await self._commit(topic, request, by._replace(shares=shares), draw_of(producer))

    def bound_queues(self, topic: HostedTopic, request: StoreRequest) -> NDArray[np.int16]:
        """Return the logical queue to which each message goes by name or key; -1 for messages that may go anywhere."""
        places = self._topics.placement(topic)
        queue_at = np.full(len(places.partitions) + 1, -1, dtype=np.int16)  # the last element is for -1
        for name, number in places.names.items():
            index = queue_index(name)
            queue_at[number] = -1 if index is None else index
        queues: NDArray[np.int16] = queue_at[bound_to(topic.name, request.body.rows, request.named, places)]
        return queues

    async def append(self, topic: HostedTopic, request: StoreRequest) -> ProduceAnswer:
        """Route the request, wait for its commits, and return where its messages are."""
        producer = request.body.producer
        if producer is None:
            draw = topic.draw(self._loop.time())
            places = self._topics.placement(topic)
            open_places = topic.without_stopped(places, known=False)
            shares = await self._split(topic, places, request, routed(topic, request, open_places, draw))
            return await self._commit(topic, request, _Routed(places, shares), draw)
        await topic.gate.turn(producer)
        with topic.gate.claim(producer):
            try:
                return await self._store_once(topic, request, producer)
            except Conflict as error:
                if error.code != _REUSED:
                    raise
            # Another process may have stored a part of this request by a route unknown here: look, try again.
            await self._meta.refresh()
            await asyncio.gather(*(partition.look() for partition in topic.partitions), return_exceptions=True)
            return await self._store_once(topic, request, producer)

    async def _store_once(self, topic: HostedTopic, request: StoreRequest, producer: Producer) -> ProduceAnswer:
        return await self._commit(topic, request, await self._route_once(topic, request, producer), draw_of(producer))

    async def _route_once(
        self, topic: HostedTopic, request: StoreRequest, producer: Producer, *, in_order: bool = True
    ) -> _Routed:
        """Return the shares of an idempotent request: its stored parts, and the rest by the present placement.

        `in_order` is as for `ProducerGate.stored_parts`.
        """
        until = self._loop.time() + FENCED_S
        # A copy at another process may be older than messages' due times: they wait there, and must not go elsewhere.
        look = request.body.times is not None and not self._hosting.alone
        while True:
            places = self._topics.placement(topic)
            logs = await topic.remembering(places.queues, request.now_ms)
            waiting = await self._delays.logs(look=look)
            if self._topics.placement(topic) is not places:
                continue  # the logs must include segments sealed meanwhile
            await topic.see(places.ends)
            if places.closed and not self._hosting.alone:
                # Another process may have stored the request there before it knew of the closing.
                await topic.look(places.partitions[number] for number in places.closed)
            waiting_id = producer_in_delay(topic.topic.id, producer.id) if waiting else ""
            stored = topic.gate.stored_parts(producer, logs, waiting, waiting_id, in_order=in_order)
            here = {name: parts for name, parts in stored.items() if name not in waiting}
            open_places = topic.without_stopped(places, known=True)
            shares = routed(topic, request, open_places, draw_of(producer), here)
            # A copy at another process may be on its way to an old leader that is not sealed yet; or that process may
            # already know of a seal, by which it has answered (SPEC STATIC-21).
            waiting_for = () if places.queues is None else unsealed_before(places.queues, shares)
            if not waiting_for:
                break
            await self._sealed(topic, waiting_for, until)
        kept = {} if places.queues is None else sealed_parts(places.queues, here)
        return _Routed(places, await self._split(topic, places, request, shares, stored), kept)

    async def _sealed(self, topic: HostedTopic, sources: Collection[str], until: float) -> None:
        """Wait until these old leaders of logical queues are sealed; raise `Unavailable` if they are not in time."""
        failures = 0
        while True:
            await self._sealer.seal(topic, sources)
            waiting = self._meta.now.moved_keys(topic.topic.id).waiting
            if waiting.isdisjoint(sources):
                return
            if self._causes.is_over(until):
                raise Unavailable(
                    f"topic {topic.name}: a remapped queue's old leader is not sealed yet; ask again",
                    code="logic_offset_undecided",
                )
            failures += 1
            await asyncio.sleep(AGAIN_S.after(failures))
            await self._meta.refresh()

    async def _split(
        self,
        topic: HostedTopic,
        places: Placement,
        request: StoreRequest,
        shares: list[PartitionShare],
        stored: Mapping[str, Sequence[StoredPart]] = {},
    ) -> list[PartitionShare]:
        times = request.body.times
        if times is None:
            if not stored or stored.keys() <= set(topic.route.partitions):
                return shares
            # An earlier request with this number had delays, and its parts stay where they are.
            times = np.full(request.body.rows.count, AT_ONCE, dtype=np.int64)
        split = partial(
            split_shares,
            topic.topic,
            request.body.rows,
            shares,
            times,
            now_ms=request.now_ms,
            delays=self._delays.names(topic.topic),
            stored=stored,
            queues=places.queues,
            schema_id=request.body.schema_id,
        )
        return split() if request.body.rows.nbytes <= INLINE_BYTES else await self._partitions.run(split)

    async def _commit(self, topic: HostedTopic, request: StoreRequest, by: _Routed, draw: int) -> ProduceAnswer:
        """Append the shares, and reroute shares that a fence refuses; return the answer when all are stored.

        `draw` places messages without a key, each time in the same way.
        """
        stored: list[tuple[PartitionShare, RequestPart]] = []
        until, window_s = 0.0, self.window_of(topic, request) / 1000
        while True:
            refused = []
            for share, part in await self._append_shares(topic, request, by, window_s):
                if isinstance(part.error, Fenced):
                    refused.append((share, part.error))
                elif part.error is not None:
                    raise shown_error(topic, by.places, share, part.error)
                else:
                    stored.append((share, part))
            if not refused:
                return await self._placed(topic, request, stored)
            window_s = 0.0  # they have waited
            until = until or self._loop.time() + FENCED_S
            places = await self._caught_up(topic, refused, until)
            try:
                by = await self._again(topic, request, places, refused, [share for share, _ in stored], draw)
            except LedElsewhere as error:
                if stored:
                    raise Unavailable(error.detail, extra=error.extra) from error  # a part of the request is stored
                raise

    async def _again(
        self,
        topic: HostedTopic,
        request: StoreRequest,
        places: Placement,
        refused: Sequence[tuple[PartitionShare, Fenced]],
        stored: Sequence[PartitionShare],
        draw: int,
    ) -> _Routed:
        """Return new shares for the messages of refused shares.

        Another process may have stored a copy of an idempotent request meanwhile, in any partition on the way.
        """
        producer = request.body.producer
        moved = [share for share, error in refused if has_moved(share, error)]
        if producer is None or not moved:
            stay = [share for share, error in refused if not has_moved(share, error)]
            elsewhere = [new for share in moved for new in routed_again(topic, request, places, share, draw)]
            return _Routed(places, [*stay, *elsewhere])
        again = await self._route_once(topic, request, producer, in_order=False)
        done = {place_of_share(share) for share in stored}
        return again._replace(shares=[share for share in again.shares if place_of_share(share) not in done])

    async def _append_shares(
        self, topic: HostedTopic, request: StoreRequest, by: _Routed, window_s: float
    ) -> list[tuple[PartitionShare, RequestPart]]:
        """Append each share, perhaps in a commit with others; return each with its outcome."""
        places, shares, kept = by
        count = len(shares) - sum(share.partition in kept for share in shares) if kept else len(shares)
        pending = PendingRequest(count, self._loop)
        flush = self._defaults.flush_of(topic.settings, request.flush)
        parts = []
        for share in shares:
            part = RequestPart(
                share.messages,
                pending,
                flush if share.delay_broker is None else Flush.SYNC,
                indexes=share.indexes,
                stamp=stamp_of(topic, request, share),
                expected_offset=expected_offset(topic, places, share, request.expected_offset),
                fence_epochs=self._fence_epochs(places, share),
                steps=request.steps,
                window_s=window_s,
            )
            parts.append((share, part))
            if kept and share.partition in kept:
                part.appended = repeated(kept[share.partition], part)
            else:
                self._partition_of(topic, share).queue.put(part)
        if count:
            await pending.wait()
        return parts

    def _fence_epochs(self, places: Placement, share: PartitionShare) -> FenceEpochs:
        return (
            places.fence_epochs[share.partition]
            if share.delay_broker is None
            else self._fencing.epochs(share.partition)
        )

    async def _caught_up(
        self, topic: HostedTopic, refused: Sequence[tuple[PartitionShare, Fenced]], until: float
    ) -> Placement:
        """Read the metadata until it has the fences that refused these shares; return the new placement.

        Raises
        ------
        Unavailable
            `fenced`: the metadata does not have the fences in time.
        """

        def left() -> tuple[str, Fenced] | None:
            places = self._topics.placement(topic)
            unknown = ((at, error) for at, error in refused if not passes(self._fence_epochs(places, at), error))
            return next(((at.partition, error) for at, error in unknown), None)

        await self._causes.known(topic, left, until)
        return self._topics.placement(topic)

    def _partition_of(self, topic: HostedTopic, share: PartitionShare) -> Partition:
        if share.delay_broker is None:
            return topic.partition(share.partition)
        return self._delays.partition(share.delay_broker)

    async def _placed(
        self, topic: HostedTopic, request: StoreRequest, stored: Sequence[tuple[PartitionShare, RequestPart]]
    ) -> ProduceAnswer:
        ranges = []
        queues = self._topics.queues(topic)
        duplicates = [part.appended is not None and part.appended.duplicate for _, part in stored]
        durable = True
        for (share, part), duplicate in zip(stored, duplicates, strict=True):
            appended = part.appended
            assert appended is not None, "a part without an error has its place"
            if appended.count != part.messages.count:
                raise Conflict(
                    "producer.seq: this number was used for a request of another size",
                    code=_REUSED,
                    field="producer.seq",
                )
            if duplicate:
                await self._check_repeat(topic, share, part)
            durable = durable and appended.durable
            partition, base_offset = shown_place(queues, share, appended.base_offset)
            placed = Range(partition, base_offset, appended.count, _indexes(share.indexes))
            if duplicate and not all(duplicates):
                placed.duplicate = True
            if share.delay_broker is not None:
                placed.delayed = True
            ranges.append(placed)
        answer = ProduceAnswer(ranges, any(duplicates), durable)
        if request.want_ids:
            answer.message_ids = await self._message_ids(topic, request.body.rows.count, stored)
        return answer

    async def _check_repeat(self, topic: HostedTopic, share: PartitionShare, part: RequestPart) -> None:
        """Refuse a repeat whose messages are not the ones stored under its number."""
        assert part.appended is not None
        log = self._partition_of(topic, share).open()
        if not await self._partitions.run(partial(brings_the_same, log, part.appended, part)):
            raise Conflict(
                "producer.seq: this number was used for a request with other messages, by this producer or by another "
                "process with its id: nothing was stored; make a producer with a new id",
                code=_REUSED,
                field="producer.seq",
            )

    async def _message_ids(
        self, topic: HostedTopic, count: int, stored: Sequence[tuple[PartitionShare, RequestPart]]
    ) -> list[str]:
        """Return the ids of all messages, in request order; a repeat's are read from the log."""
        ids = [""] * count
        for share, part in stored:
            appended = part.appended
            assert appended is not None
            message_ids = appended.message_ids
            if appended.duplicate:
                message_ids = await self._partitions.run(
                    partial(_stored_ids, self._partition_of(topic, share).open(), appended)
                )
            for index, message_id in zip(
                share.indexes if share.indexes is not None else range(count), message_ids.to_pylist(), strict=True
            ):
                ids[index] = message_id
        return ids


def _indexes(indexes: Indexes | None) -> list[int] | UnsetType:
    if indexes is None:
        return UNSET
    return indexes.tolist() if isinstance(indexes, np.ndarray) else list(indexes)


def _stored_ids(log: PartitionLog, appended: Appended) -> pa.ChunkedArray:
    """Return the ids in `[base_offset, base_offset + count)`; raise `NotFound` if retention has taken some."""
    ids: list[str] = []
    while len(ids) < appended.count:
        fetched = log.read(
            appended.base_offset + len(ids), max_messages=appended.count - len(ids), max_bytes=FETCH_BYTES_MAX
        )
        if fetched.status is not FetchStatus.FOUND:
            raise NotFound("the messages of this request are no longer stored", code="offset_out_of_range", field="ids")
        ids += fetched.rows.column("message_id").to_pylist()
    return pa.array(ids, pa.string())
