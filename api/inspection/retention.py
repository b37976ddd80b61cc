"""`GET /v1/topics/{topic}/retention`: what retention takes next of each partition, when, and why (SPEC RETRY-9).

The rules are those of the job `retain`, which removes whole files, oldest first. With other limits than the topic's,
the answer is what these would take: the plan of a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from msgspec.structs import replace
from msgspec.structs import replace as with_limits

from deltamq.api.progress.times import brought_up
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import json_answer, moment_us
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import JSON_INTEGER_MAX, RETENTION_MS_MAX, RETENTION_MS_MIN
from deltamq.mq.meta.retention_holds import Dated
from deltamq.mq.meta.topic_settings import NO_LIMIT, limit_of
from deltamq.mq.wire.topics import NextRemoval, PartitionRetention, RetentionInfo
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.retention import verdict_of
from deltamq.tables.queue.retention_rules import Rule, Rules

router = APIRouter(prefix="/v1/topics/{topic}/retention", tags=["topics"])

#: The last time that can be shown, in the year 9999.
_LAST_US: Final = 253_402_300_799_000_000


@router.get(
    "",
    summary="What retention takes next, when and why",
    responses=answers(RetentionInfo, 400, 404, 422, 500),
)
async def show_retention(
    topic: TopicName,
    service: Running,
    caller: Asking,
    retention_ms: Annotated[
        int | None,
        Query(ge=RETENTION_MS_MIN, le=RETENTION_MS_MAX, description="What it would take if the topic had this."),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        Query(
            ge=NO_LIMIT,
            le=JSON_INTEGER_MAX,
            description="The same; -1 for no limit.",
            json_schema_extra={"not": {"const": 0}},
        ),
    ] = None,
) -> Response:
    if retention_bytes == 0:
        raise Unprocessable("retention_bytes must be 1 or more, or -1 for no limit", field="retention_bytes")
    hosted = await service.topics.require(topic)
    logs = await brought_up(hosted, service.settings.refresh_ms)
    config, meta, now_us = service.config, service.meta.now, service.now_ms() * 1_000
    rules = Rules(
        service.warehouse, config.retention, config.warehouse.cluster, tuple(meta.brokers.brokers), meta, now_us
    )
    settings, may_see = hosted.settings, caller.filter("group", "describe")
    keep_ms = settings.retention_ms if retention_ms is None else retention_ms
    keep_bytes = limit_of(settings) if retention_bytes is None else retention_bytes
    partitions = await service.partitions.run(partial(_shown, logs, rules, now_us, keep_ms, keep_bytes))
    shown = RetentionInfo(
        topic=hosted.topic.name,
        retention_ms=keep_ms,
        retention_bytes=keep_bytes,
        partitions=tuple(replace(one, held_by=tuple(filter(may_see, one.held_by))) for one in partitions),
    )
    return json_answer(shown)


def _shown(
    logs: Mapping[str, PartitionLog], rules: Rules, now_us: int, keep_ms: int, keep_bytes: int
) -> tuple[PartitionRetention, ...]:
    """Return each partition; runs on a work thread, since who holds messages back is in the queue's logs."""
    found = []
    for name, log in logs.items():
        rule = rules.of(log)
        assert rule is not None, "topics have rules"
        limits = with_limits(rule, keep_ms=keep_ms, keep_bytes=None if keep_bytes == NO_LIMIT else keep_bytes)
        found.append(_partition(name, log, limits, rules, now_us))
    return tuple(found)


def _partition(name: str, log: PartitionLog, rule: Rule, rules: Rules, now_us: int) -> PartitionRetention:
    stats = log.stats()
    verdict = verdict_of(log, rule, rules, now_us)
    due = max(verdict.below, stats.min_offset)
    dated = zip(log.files, rules.files(log, now_us), strict=True)
    left = next(((file.size, aged) for file, aged in dated if aged.end > due), None)
    return PartitionRetention(
        partition=name,
        messages=stats.messages,
        bytes=stats.bytes,
        due_messages=due - stats.min_offset,
        held_by=verdict.held_by,
        next=None if left is None else _next(*left, due, rule, now_us),
    )


def _next(size: int, file: Dated, first: int, rule: Rule, now_us: int) -> NextRemoval:
    """Return the file that goes after those that are due; one that is held back goes once nobody holds it."""
    by_size = rule.keep_bytes is not None and file.bytes_behind >= rule.keep_bytes
    time_us = now_us if by_size else max(now_us, file.time_us + rule.keep_ms * 1_000)
    return NextRemoval(
        below=file.end,
        messages=file.end - first,
        bytes=size,
        time=moment_us(min(time_us, _LAST_US)),
        why="size" if by_size else "age",
    )
