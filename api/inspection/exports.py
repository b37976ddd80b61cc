"""`GET /v1/exports`: the typed tables into which the job `export` writes topics, and how far it is (SPEC LOOK-18).

definitions, progress, failures   files of the warehouse, which the job writes
behind                            the topic's stored messages after the job's next offsets
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Query, Response

from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.progress.times import brought_up
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import NAME_LENGTH_MAX
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.reading import StoredOffsets, Stretch
from deltamq.mq.wire.cluster import ExportFailureInfo, ExportInfo, ExportList, JobShard
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.ops.exports import (
    Definition,
    ExportFailure,
    ExportState,
    definitions,
    read_export_state,
    read_failure,
)
from deltamq.tables.store.store import Store

router = APIRouter(prefix="/v1/exports", tags=["service"])

_JOB: Final = "export"


class _Export(NamedTuple):
    """What the warehouse has of one export."""

    definition: Definition
    state: ExportState
    failure: ExportFailure | None


@router.get(
    "",
    summary="Exports of topics to typed tables, and how far they are",
    responses=answers(ExportList, 400, 422, 500),
)
async def list_exports(
    service: Running,
    caller: Asking,
    topic: Annotated[str | None, Query(description="Only exports of this topic.", max_length=NAME_LENGTH_MAX)] = None,
) -> Response:
    may_read = caller.filter("topic", "subscribe")

    def is_wanted(named: str) -> bool:
        return topic in (None, named) and (may_read is None or may_read(named))

    exports = await service.partitions.run(partial(_read, service.warehouse.store, is_wanted))
    shards = {
        shard.shard: shard
        for report in await service.job_watch.reports()
        if report.job == _JOB
        for shard in report.shards
    }
    refresh_ms = service.settings.refresh_ms
    shown = [
        _shown(export, shards.get(export.definition.name), await _behind(service.topics, export, refresh_ms))
        for export in exports
    ]
    return json_answer(ExportList(exports=tuple(shown)))


def _read(store: Store, is_wanted: Callable[[str], bool]) -> list[_Export]:
    """Return the exports of the topics that are wanted, by name. Blocks."""
    return [
        _Export(definition, read_export_state(store, definition.id), read_failure(store, definition.id))
        for definition in definitions(store)
        if is_wanted(definition.topic)
    ]


async def _behind(topics: Topics, export: _Export, refresh_ms: int) -> int | None:
    """Return how many stored messages are not exported yet; None if the topic is not there, or not here as a whole."""
    present = topics.state.topics.get(export.definition.topic)
    if present is None or present.world is not None:
        return None
    hosted = await topics.require(present.name)
    logs = await brought_up(hosted, refresh_ms)
    try:
        stored = _stored(topics, hosted, logs)
    except DeltaMQError:
        return None
    ends, generation = export.state.ends, present.generation
    return sum(
        offsets.count(ends.get(f"{name}:{generation}", offsets.first), offsets.end) for name, offsets in stored.items()
    )


def _stored(topics: Topics, hosted: HostedTopic, logs: Mapping[str, PartitionLog]) -> dict[str, StoredOffsets]:
    """Return the stored offsets of each partition, or logical queue, that has any."""
    queues = topics.queues(hosted)
    if queues is None:
        return {name: StoredOffsets.of_plain(log.min_offset, log.end_offset) for name, log in logs.items()}
    found = {name: queues.find(name) for name in queues.names}
    return {name: _of_queue(queue, logs) for name, queue in found.items() if queue is not None and queue.readable}


def _of_queue(queue: LogicalQueue, logs: Mapping[str, PartitionLog]) -> StoredOffsets:
    stretches = []
    for segment in queue.readable:
        log, empty = logs.get(segment.partition), segment.end_offset if segment.is_sealed else segment.start_offset
        low, end = (empty, empty) if log is None else (log.min_offset, log.end_offset)
        stretches.append(Stretch(segment.delta, low, end))
    return StoredOffsets(tuple(stretches))


def _shown(export: _Export, shard: JobShard | None, behind: int | None) -> ExportInfo:
    definition, state, failure = export
    return ExportInfo(
        name=definition.name,
        topic=definition.topic,
        to=definition.to,
        quarantine=definition.quarantine,
        schema=definition.schema,
        columns=definition.columns,
        rows=state.rows,
        quarantined=state.quarantined,
        offsets={name.rpartition(":")[0]: end for name, end in sorted(state.ends.items())},
        behind=behind,
        last_run_time=None if shard is None else shard.last_run_time,
        failure=None if failure is None else ExportFailureInfo(time=moment(failure.at_ms), detail=failure.detail),
    )
