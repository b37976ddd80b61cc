"""The job `retain`: messages whose time has passed are removed (SPEC RETRY-6). It needs no Spark session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from jobs.queue.brokers import brokers_of
from jobs.run.registry import Facts, job
from jobs.run.warehouses import warehouse_of
from mq.errors import Corrupt, Unavailable
from tables.config import Config
from tables.partition_stats import Removed
from tables.paths import Space
from tables.retention import Retained, Retention

__all__ = ["retain"]

#: Groups that the facts name, the farthest behind first, and partitions that an error names.
_SHOWN_MAX: Final = 5


@job(name="retain", every_s=lambda conf: conf.jobs.retain_every_s, needs_spark=lambda conf: False)
def retain(spark: None, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Remove the messages whose time has passed, in all partitions of all spaces.

    Input: every partition's live files with their append times; topics and groups; what groups have committed and what
    is popped and open; how far the merge job is; the delay marks. Which rule applies where: `tables.retention_rules`.

    Output: at most one commit for each partition, which removes whole files from its front. The files themselves are
    deleted `log.file_keep_ms` later by this application, or, if it has ended by then, `log.orphan_keep_ms` later by
    whoever has the partition open.

    Idempotent: a file that is removed is not there to be removed again. Two runs at once, or a run and any append or
    roll-up, race for the next version of a partition, and the loser decides again.

    A kill at any line leaves each partition as before or after its one commit; the next run does the rest.

    `rows` are the messages removed. `held_by` names the groups that keep messages which are old enough to go; of
    `unmerged` of the queue's own logs, records are old enough that are not in the state tables yet. `lags` says how
    many stored messages the groups are behind.

    Raises
    ------
    Corrupt, Unavailable
        Some partitions could not be dealt with; all others were.
    """
    warehouse = warehouse_of(conf)
    brokers = brokers_of(warehouse, conf)
    retention = Retention(warehouse, conf.retention, conf.warehouse.cluster)
    found = list(retention.run(brokers, int(now.timestamp() * 1_000_000)))
    facts = _facts(found)
    failed = [one for one in found if one.error is not None]
    if failed:
        told = "; ".join(f"{one.ref.folder}: {type(one.error).__name__}: {one.error}" for one in failed[:_SHOWN_MAX])
        done = " ".join(f"{key}={value}" for key, value in facts.items())
        kind = Corrupt if any(isinstance(one.error, Corrupt) for one in failed) else Unavailable
        raise kind(f"{len(failed)} of {len(found)} partitions failed: {told}; the others: {done}", code="retain_failed")
    return facts


def _facts(found: Sequence[Retained]) -> Facts:
    removed = sum((one.removed for one in found), Removed())
    lags: Counter[str] = Counter()
    for one in found:
        for lag in one.lags:
            lags[lag.group] += lag.messages
    facts: dict[str, int | str] = {
        "partitions": len(found),
        "files": removed.files,
        "rows": removed.messages,
        "bytes": removed.bytes,
    }
    holding = sorted({who for one in found for who in one.held_by if one.ref.space is not Space.SYS})
    if holding:
        facts["held_by"] = _shown(holding)
    unmerged = sum(bool(one.held_by) for one in found if one.ref.space is Space.SYS)
    if unmerged:
        facts["unmerged"] = unmerged
    if lags:
        behind = sorted(lags.items(), key=lambda item: (-item[1], item[0]))
        facts["lags"] = _shown([f"{group}:{messages}" for group, messages in behind])
    return facts


def _shown(words: Sequence[str]) -> str:
    more = f",+{len(words) - _SHOWN_MAX}" if len(words) > _SHOWN_MAX else ""
    return ",".join(words[:_SHOWN_MAX]) + more
