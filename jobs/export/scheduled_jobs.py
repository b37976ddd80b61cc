"""The jobs `replay` and `reset`, which carry out scheduled replays and resets when they are due (SPEC SPARK-10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from deltamq.jobs.export.replay import Chosen, replay_dead_letters
from deltamq.jobs.export.reset import reset_offsets, target_of
from deltamq.jobs.export.schedules import (
    AnyScheduled,
    Kind,
    ScheduledReplay,
    ScheduledReset,
    ScheduledState,
    next_due_ms,
    read_scheduled,
    read_state,
    scheduled_names,
    write_state,
)
from deltamq.jobs.run.registry import WHOLE, Facts, job, with_spark_engine
from deltamq.jobs.sink.open_sink import SinkSettings
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.mq.errors import DeltaMQError, NotFound, Unavailable
from deltamq.tables.config import Config
from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.store import Store

_MS: Final = 1_000
Counts = Mapping[str, int]


def _names(kind: Kind, conf: Config) -> tuple[str, ...]:
    """None are scheduled if there is no warehouse yet."""
    try:
        return tuple(scheduled_names(storage(conf.warehouse.uri), kind))
    except NotFound:
        return ()


@job(
    name="replay",
    every_s=lambda conf: conf.jobs.scheduled_every_s,
    needs_spark=lambda conf: with_spark_engine(conf) and bool(_names("replay", conf)),
    shards=lambda conf: _names("replay", conf) or WHOLE,
)
def replay(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Send new dead letters back: every replay that is scheduled (deltamq jobs scheduled) and due.

    Input: the schedules, the progress of each, and the dead letters of its group.
    Output: messages in their original topics or in the group's retries, and the progress of each schedule.
    Idempotent: each dead letter is a request that is named after its offset. A kill at any line before the state is
    stored makes the next run send all again; a partition stores nothing twice for 24 hours. A letter that a topic
    refuses stays, is counted, and is not tried again. A replay that fails keeps no other from running.
    """
    settings = SinkSettings.of(conf, conf.warehouse.uri)

    def send(schedule: AnyScheduled, state: ScheduledState, now_ms: int) -> tuple[Counts, Mapping[str, int]]:
        assert isinstance(schedule, ScheduledReplay)
        chosen = Chosen(topics=frozenset(schedule.topics) or None, start_offsets=state.offsets)
        done = replay_dead_letters(settings, schedule.group, chosen, to=schedule.to, spark=spark)
        counts = {"rows": done.replayed, "duplicates": done.duplicates, "refused": sum(done.failed.values())}
        return counts, done.ends

    return _carry_out("replay", conf, now, shards, send)


@job(
    name="reset",
    every_s=lambda conf: conf.jobs.scheduled_every_s,
    needs_spark=lambda conf: False,
    shards=lambda conf: _names("reset", conf) or WHOLE,
)
def reset(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Reset groups' offsets in a topic: every reset that is scheduled (deltamq jobs scheduled) and due.

    Input: the schedules, and when each is due; the offsets of the topic's partitions, and the offsets of a time.
    Output: an event in the metadata log that begins a new epoch, and fences in the group's retries and dead letters.
    Idempotent: a kill at any line before the state is stored lets the next run reset once more, in another epoch.
    A reset that fails does not keep others from running.
    """

    def put(schedule: AnyScheduled, state: ScheduledState, now_ms: int) -> tuple[Counts, Mapping[str, int]]:
        assert isinstance(schedule, ScheduledReset)
        target = target_of(schedule.to, now_ms)
        reset_offsets(warehouse_of(conf), schedule.group, schedule.topic, target, retries=schedule.retries)
        return {"rows": 1}, {}

    return _carry_out("reset", conf, now, shards, put)


def _carry_out(
    kind: Kind,
    conf: Config,
    now: datetime,
    shards: Sequence[str] | None,
    act: Callable[[AnyScheduled, ScheduledState, int], tuple[Counts, Mapping[str, int]]],
) -> Facts:
    store: Store = storage(conf.warehouse.uri)
    now_ms = int(now.timestamp() * _MS)
    facts: dict[str, int | str] = {"due": 0, "rows": 0}
    failed: list[str] = []
    for name in scheduled_names(store, kind):
        if shards is not None and name not in shards:
            continue
        try:
            schedule = read_scheduled(store, kind, name)
            state = read_state(store, schedule)
            if state.due_ms > now_ms:
                continue
            facts["due"] = int(facts["due"]) + 1
            counts, offsets = act(schedule, state, now_ms)
        except DeltaMQError as error:
            failed.append(f"{name}: {error}")
            continue
        failpoint("scheduled.before_state")
        write_state(store, schedule, ScheduledState(due_ms=next_due_ms(schedule, now_ms), offsets=offsets))
        for what, count in counts.items():
            facts[what] = int(facts.get(what, 0)) + count
    if failed:
        raise Unavailable("; ".join(failed), code="scheduled_failed")
    return facts
