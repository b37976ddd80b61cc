"""Appends each request of a manifest once, after any kill (SPEC SPARK-3, SEND-5).

    first time      one commit for each partition, with all of its requests
    again, or       find the rows of a request that the topic's partitions hold -> append the others by today's route,
    refused         until no fence refuses any

The second way is how the service treats a repeated request: stored rows stay where they are, the others go where their
keys belong now (I15). Rows are looked for only if they may be stored already: a manifest that was put a moment ago has
no such rows. After a refusal they are looked for again, because another driver of the batch may have stored some before
the fence. For the same reason nothing is appended to the new leader of a logical queue before the old one is sealed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.jobs.sink.manifest import REQUEST_BYTES_MAX, REQUEST_ROWS_MAX, Manifest, SinkRequest
from deltamq.jobs.sink.open_sink import OpenSink
from deltamq.jobs.sink.routing import NAMED, targets_again, token_of
from deltamq.jobs.sink.staging import read_sections
from deltamq.jobs.tasks.known_outcome import until_known
from deltamq.mq.errors import Corrupt, DeltaMQError, Fenced
from deltamq.mq.meta.topics import Topic
from deltamq.tables.delta.snapshot import PartitionNotFound
from deltamq.tables.delta.stamped import ProducerStamp, one_batch
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.log.stored_requests import REMEMBERED_MS
from deltamq.tables.queue.placement import FenceEpochs, Placement
from deltamq.tables.queue.redelivery_rows import with_destination
from deltamq.tables.queue.waiting_rows import to_wait
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import FileMissing

#: Partitions that are appended to in parallel.
THREADS_MAX: Final = 4
_COMMIT_BYTES_MAX: Final = 2 * REQUEST_BYTES_MAX
_COMMIT_ROWS_MAX: Final = 2 * REQUEST_ROWS_MAX
#: Columns of staged rows that only decide where a row goes.
_ROUTING_COLUMNS: Final = (NAMED, "deliver_time")

Indexes = NDArray[np.int64]


def append_manifest(sink: OpenSink, manifest: Manifest, *, flush: Flush | None, again: bool) -> list[PartitionLog]:
    """Append all requests that are not stored yet; return the logs of the partitions that were appended to.

    Parameters
    ----------
    flush
        Whether appends wait for the disk; None: by the settings of the topic or the warehouse.
    again
        Whether an earlier run may have appended some of the requests.

    Raises
    ------
    Unavailable
        A partition is being taken over, or the disk is full: the call may be repeated.
    """
    by_target: dict[tuple[str, str, bool], list[SinkRequest]] = {}
    for request in manifest.requests:
        by_target.setdefault((request.topic, request.partition, request.waits), []).append(request)
    appends = [_Append(sink, manifest, flush, again, requests) for requests in by_target.values()]
    for topic in {request.topic for request in manifest.requests}:
        sink.topic(topic)
    if len(appends) == 1:
        appends[0].run()
    else:
        with ThreadPoolExecutor(min(THREADS_MAX, max(1, len(appends))), "mq-sink") as pool:
            # every append ends before the first error is raised, so none goes on after the return
            for outcome in [pool.submit(append.run) for append in appends]:
                outcome.result()
    return list({id(log): log for append in appends for log in append.touched}.values())


class _Left(msgspec.Struct):
    """The positions of a request's rows that are not stored, and all its rows once they are read."""

    request: SinkRequest
    indexes: Indexes
    rows: pa.RecordBatch | None = None


class _Append:
    """The requests of a manifest for one partition."""

    def __init__(
        self, sink: OpenSink, manifest: Manifest, flush: Flush | None, again: bool, requests: Sequence[SinkRequest]
    ) -> None:
        self._sink = sink
        self._manifest = manifest
        self._flush = flush
        self._again = again
        self._requests = requests
        self.touched: list[PartitionLog] = []

    def run(self) -> None:
        if self._again:
            for request in self._requests:
                self._settle(request, look=True)
            return
        for group in _groups(self._requests):
            if not self._append_together(group):
                for request in group:
                    self._settle(request, look=False)

    def _append_together(self, requests: Sequence[SinkRequest]) -> bool:
        """Append requests by the route of their staging; False: the route has changed, or an append was refused."""
        first = requests[0]
        topic, placement = self._sink.routed(first.topic)
        if placement.ahead or any(request.tokens != {token_of(topic, placement)} for request in requests):
            return False
        batches = [
            Batch(self._final(topic, request, self._rows(request)), self._stamp(request)) for request in requests
        ]
        try:
            self._store(topic, first.partition, first, batches, placement)
        except Fenced:
            return False
        return True

    def _settle(self, request: SinkRequest, *, look: bool) -> None:
        left = _Left(request, np.arange(request.rows))
        until_s = time.monotonic() + self._sink.fenced_s
        while left.indexes.size:
            # taken before the look: if other drivers append after the look, a fence that they do not know refuses it
            topic, placement = self._sink.routed(request.topic)
            if placement.ahead:
                self._sink.seal(topic)
                look = True
                continue
            if look:
                left.indexes = np.intersect1d(left.indexes, self._not_stored(topic, request))
                if not left.indexes.size:
                    return  # its staged rows may be gone
            refused = self._append_left(left, topic, placement)
            if refused is None:
                return
            self._sink.learn(topic, refused, until_s)
            look = True

    def _append_left(self, left: _Left, topic: Topic, placement: Placement) -> Fenced | None:
        """Append the missing rows, partition by partition; return the last refusal, whose rows are still missing."""
        request = left.request
        if left.rows is None:
            left.rows = self._rows(request)
        targets = targets_again(left.rows, request.partition, topic, placement, queue=request.queue)
        refused: Fenced | None = None
        for target in np.unique(targets[left.indexes]).tolist():
            indexes = left.indexes[targets[left.indexes] == target]
            partition = placement.partitions[target]
            rows = left.rows.take(pa.array(indexes))
            stamp = self._stamp(request, indexes)
            batch = Batch(self._final(topic, request, rows, _waited_for(placement, partition)), stamp)
            try:
                self._store(topic, partition, request, [batch], placement)
            except Fenced as error:
                refused = error
            else:
                left.indexes = np.setdiff1d(left.indexes, indexes)
        return refused

    # One append.

    def _rows(self, request: SinkRequest) -> pa.RecordBatch:
        return _one(read_sections(self._sink.warehouse.store, self._manifest.files, request.sections))

    def _stamp(self, request: SinkRequest, indexes: Indexes | None = None) -> ProducerStamp:
        whole = indexes is None or len(indexes) == request.rows
        positions = None if indexes is None or whole else tuple(indexes.tolist())
        return ProducerStamp(self._manifest.producer_id(request), self._manifest.batch, positions, request.rows)

    def _final(
        self, topic: Topic, request: SinkRequest, rows: pa.RecordBatch, partition: str | None = None
    ) -> pa.RecordBatch:
        """Convert staged rows to the form in which their partition, or its delay log, stores them."""
        kept = rows.select([name for name in rows.schema.names if name not in _ROUTING_COLUMNS])
        if not request.waits:
            return self._sink.codecs.typed(topic, kept)
        at_ms = pc.divide(rows.column("deliver_time").cast(pa.int64()), 1000)
        target = partition or request.queue or request.partition
        names = pa.repeat(pa.scalar(target, pa.string()), rows.num_rows)
        return with_destination(to_wait(kept, self._sink.codecs.of(topic)), topic, names, at_ms)

    def _store(
        self, topic: Topic, partition: str, request: SinkRequest, batches: Sequence[Batch], placement: Placement
    ) -> None:
        """Append the batches in one commit; raise `Fenced` if it is refused; then nothing is stored."""
        log, fence_epochs, flush = self._destination(topic, partition, request, placement)
        failpoint("sink.before_append")
        try:
            until_known(lambda: log.append(batches, flush=flush, fence_epochs=fence_epochs))
        except (FileMissing, PartitionNotFound) as error:
            raise self._explained(topic, log, error) from error
        failpoint("sink.after_append")
        self.touched.append(log)

    def _explained(self, topic: Topic, log: PartitionLog, error: DeltaMQError) -> DeltaMQError:
        """Stop a partition of a living topic whose log is gone, so that later batches pass it over."""
        gone = log.gone()
        present = self._sink.refresh().topics.topics.get(topic.name)
        if gone is None or present is None or present.id != topic.id or log.ref.name not in present.route.index_of:
            return error
        log.stop(gone)
        return gone

    def _destination(
        self, topic: Topic, partition: str, request: SinkRequest, placement: Placement
    ) -> tuple[PartitionLog, FenceEpochs, Flush]:
        if request.waits:
            # Always the delay partition of the staging, which recognizes the rows.
            # Marks refer to offsets of a delay partition: a power cut must not take any of its rows back.
            home = request.partition
            return self._sink.delay_log(home), self._sink.delay_fence_epochs(home), Flush.SYNC
        flush = self._sink.flush_of(topic, self._flush)
        return self._sink.log(topic, partition), placement.fence_epochs[partition], flush

    # Rows that are stored already.

    def _not_stored(self, topic: Topic, request: SinkRequest) -> Indexes:
        left = np.ones(request.rows, dtype=bool)
        producer_id, batch = self._manifest.producer_id(request), self._manifest.batch
        for log in self._candidates(topic, request):
            log.refresh()
            seen = log.known_producer(producer_id)
            for part in () if seen is None else seen.parts.get(batch, ()):
                left[slice(None) if part.indexes is None else np.array(part.indexes, dtype=np.int64)] = False
        if left.all() and self._sink.now_ms() - self._manifest.created_ms > REMEMBERED_MS:
            self._count_stored(topic, request, left)
        return np.flatnonzero(left)

    def _candidates(self, topic: Topic, request: SinkRequest) -> Iterator[PartitionLog]:
        """Every partition that may hold rows of a request: keys or queues may have moved since its staging."""
        if request.waits:
            yield self._sink.delay_log(request.partition)
            return
        for partition in topic.route.partitions:
            yield self._sink.log(topic, partition)

    def _count_stored(self, topic: Topic, request: SinkRequest, left: NDArray[np.bool_]) -> None:
        """Search the rows for a request: the query was stopped for longer than producers are remembered."""
        stored = sum(self._count_rows(log, request) for log in self._candidates(topic, request))
        if stored == len(left):
            left[:] = False
        elif stored:
            name, batch = self._manifest.name, self._manifest.batch
            raise Corrupt(
                f"{stored} of {len(left)} rows of request {request.number} of batch {batch} of sink {name} are stored,"
                " and it is no longer known which: the query was stopped for over a day during an expansion",
                code="sink_request_torn",
            )

    def _count_rows(self, log: PartitionLog, request: SinkRequest) -> int:
        producer_id, batch = self._manifest.producer_id(request), self._manifest.batch
        count = 0
        for page in pages(log, log.offset_at(self._manifest.created_ms * 1000)):
            rows = page.rows
            same = pc.and_(
                pc.equal(rows.column("producer_id"), producer_id), pc.equal(rows.column("producer_seq"), batch)
            )
            count += pc.sum(same).as_py() or 0
        return count


def _waited_for(placement: Placement, partition: str) -> str:
    """Delayed rows name their logical queue, which may have moved when they are due."""
    segment = None if placement.queues is None else placement.queues.of_partition(partition)
    return partition if segment is None else segment.queue.name


def _groups(requests: Sequence[SinkRequest]) -> Iterator[list[SinkRequest]]:
    group: list[SinkRequest] = []
    nbytes = rows = 0
    for request in requests:
        size = sum(section.length for section in request.sections)
        if group and (nbytes + size > _COMMIT_BYTES_MAX or rows + request.rows > _COMMIT_ROWS_MAX):
            yield group
            group, nbytes, rows = [], 0, 0
        group.append(request)
        nbytes += size
        rows += request.rows
    if group:
        yield group


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """A column that a section lacks is null there."""
    if len({batch.schema for batch in batches}) == 1:
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    rows = one_batch(batches)
    if not any(NAMED in batch.schema.names for batch in batches):
        return rows
    named = [
        batch.column(NAMED) if NAMED in batch.schema.names else pa.repeat(False, batch.num_rows) for batch in batches
    ]
    return rows.append_column(NAMED, pa.concat_arrays(named))
