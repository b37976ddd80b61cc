"""The job `latest`: the newest value of each key of typed topics, as tables (SPEC TYPE-45).

    messages behind the merged offsets -> newest of each key -> MERGE: values, deletions and offsets in one commit

Tasks of Spark read, group and merge; the driver reads the logs' ends. `tables.state.latest` has the table's form.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deltamq.jobs.merge.state_tables import frame_of, signed, table_at, writing_session
from deltamq.jobs.read.offset_range import stored_partitions
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.read.typed_columns import values_of_topic
from deltamq.jobs.run.locks import shard_lock
from deltamq.jobs.run.registry import WHOLE, Facts, job, with_spark_engine
from deltamq.jobs.sql.latest_view import merged_ends, newest_messages
from deltamq.jobs.tasks.first_lines import sentence_of
from deltamq.jobs.tasks.task_errors import errors_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import DeltaMQError, NotFound, Unavailable
from deltamq.tables.config import Config
from deltamq.tables.failpoints import failpoint
from deltamq.tables.queue.metadata import MetaFollower
from deltamq.tables.state.latest import GROUP_BYTES, latest_folder, open_latest
from deltamq.tables.state.upkeep import sweep_state
from deltamq.tables.store.store import Store

#: Data files from which on a table is compacted.
_FILES_MAX: Final = 32
#: Later rows win; a row without a value deletes. A partition's own row has neither key nor time.
_MERGE: Final = """
    MERGE WITH SCHEMA EVOLUTION INTO {table} t USING latest_source s ON t.mq_id = s.mq_id
    WHEN MATCHED AND s.value IS NULL AND s.mq_append_time >= t.mq_append_time THEN DELETE
    WHEN MATCHED AND (s.mq_key IS NULL OR (s.value IS NOT NULL AND s.mq_append_time >= t.mq_append_time))
      THEN UPDATE SET *
    WHEN NOT MATCHED AND (s.mq_key IS NULL OR s.value IS NOT NULL) THEN INSERT *
"""


#: The metadata of each warehouse: shards are looked for every few seconds, on two threads.
_followed: Final[dict[str, MetaFollower]] = {}
_following: Final = threading.Lock()


def _topics(conf: Config) -> list[str]:
    """The topics with a schema that the settings name; none if there is no warehouse yet."""
    try:
        store = storage(conf.warehouse.uri)
        with _following:
            followed = _followed.get(conf.warehouse.uri) or _followed.setdefault(
                conf.warehouse.uri, MetaFollower(store)
            )
            followed.refresh()
            catalog = Catalog(store, followed.meta)
    except NotFound:
        return []
    return [topic for topic in catalog.typed_topics() if re.fullmatch(conf.jobs.latest_topics, topic)]


@job(
    name="latest",
    every_s=lambda conf: conf.jobs.latest_every_s,
    needs_spark=lambda conf: with_spark_engine(conf) and bool(_topics(conf)),
    shards=lambda conf: tuple(_topics(conf)) or WHOLE,
)
def latest(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Merge the newest value of each key of typed topics into a table for each (`jobs.latest_topics`).

    Input: the topics' message tables, and of each `state/latest_<topic's id>` how far it is merged.
    Output: that table: a row for each key whose newest message has a value. Tables of deleted topics are removed.
    Idempotent: values and merged offsets are one commit. A kill at any line leaves a table as before or after it.
    The engine `local` does nothing: the view `mq_latest_<topic>` then reads the whole topic.
    """
    store = storage(conf.warehouse.uri)
    _remove_others(store)
    if spark is None:
        return {"skipped": "no-topic-or-engine-local"}
    facts = {"topics": 0, "rows": 0, "lost": 0}
    failed: list[str] = []
    session = writing_session(spark)
    session.conf.set("parquet.block.size", str(GROUP_BYTES))
    for topic in _topics(conf):
        if shards is not None and topic not in shards:
            continue
        try:
            if shards is None:
                with shard_lock(store, "latest", topic):
                    done = merge_latest(session, store, topic, conf.warehouse.uri, now)
            else:
                done = merge_latest(session, store, topic, conf.warehouse.uri, now)
        except (DeltaMQError, PySparkException) as error:
            failed.append(f"{topic}: {sentence_of(str(error))}")
            continue
        facts["topics"] += 1
        facts = {name: facts[name] + done.get(name, 0) for name in facts}
    if failed:
        raise Unavailable("; ".join(failed), code="latest_failed")
    return facts


def merge_latest(session: SparkSession, store: Store, topic: str, warehouse: str, now: datetime) -> Mapping[str, int]:
    """Merge what a topic has behind the merged offsets, up to its present end; return counts of messages.

    `session` is one of `writing_session`. `lost` are messages that retention removed before they were merged.
    """
    catalog = Catalog(store)
    topic_id, values = catalog.topic_id(topic), values_of_topic(catalog, topic)
    assert values is not None, "the topic has a schema"
    now_ms = int(now.timestamp() * 1_000)
    log = open_latest(store, topic_id, values, now_ms)
    folder = latest_folder(topic_id)
    table = table_at(store, folder)
    merged = merged_ends(session.sql(f"SELECT * FROM {table}"))
    starts, ends, lost = {}, {}, 0
    for stored in stored_partitions(store, catalog.partitions(topic)):
        low, high = merged.get(stored.name, 0), stored.offsets.end
        if low < high:
            lost += stored.offsets.lost(low, high) if stored.name in merged else 0
            starts[stored.name], ends[stored.name] = max(low, stored.offsets.first), high
    sweep_state(store, folder, now_ms)
    if not ends:
        return {"rows": 0}
    rows = newest_messages(
        session,
        warehouse=warehouse,
        assign=json.dumps({topic: list(ends)}),
        startingOffsets=json.dumps({topic: starts}),
        endingOffsets=json.dumps({topic: ends}),
        failOnDataLoss=False,
    )
    marks = frame_of(session, _marks(ends), partitions=1)
    failpoint("latest.before_merge")
    with errors_of_tasks(), signed(session, log):
        rows.unionByName(marks, allowMissingColumns=True).createOrReplaceTempView("latest_source")
        session.sql(_MERGE.format(table=table))
        failpoint("latest.after_merge")
        log = open_latest(store, topic_id, values, now_ms)
    if len(log.files) > _FILES_MAX:
        with signed(session, log):
            session.sql(f"OPTIMIZE {table}")
    return {"rows": sum(ends[name] - starts[name] for name in ends), "lost": lost}


def _marks(ends: Mapping[str, int]) -> pa.Table:
    names = list(ends)
    return pa.table(
        {
            "mq_id": pa.array([f"p{name}" for name in names], pa.string()),
            "mq_partition": pa.array(names, pa.string()),
            "mq_offset": pa.array([ends[name] for name in names], pa.int64()),
        }
    )


def _remove_others(store: Store) -> None:
    """Remove the tables of topics that are gone: listed before the topics are, so that none is new."""
    folders = [name for name in store.folders("state") if latest_folder("") in f"state/{name}"]
    catalog = Catalog(store)
    present = {latest_folder(catalog.topic_id(topic)) for topic in catalog.topics()}
    for name in folders:
        if f"state/{name}" not in present:
            store.delete_tree(f"state/{name}")
