"""The queue in SQL: temporary views over the state tables and the groups' own logs (SPEC POP-19, CONS-4, META-4).

| view              | a row for each                                                              |
|-------------------|-----------------------------------------------------------------------------|
| `mq_partitions`   | partition, with `min_offset`, `end_offset`, `location`, `logical_queue`     |
| `mq_in_flight`    | message that is not acknowledged; `overdue`: its lease is over; `given_back`: as failed |
| `mq_lag`          | group and partition: `committed_offset`, `end_offset`, `lag`, `in_flight`   |
| `mq_lane_lag`     | the same for partitions as they are stored: segments of logical queues      |
| `mq_logical_queues` | logical queue of a static topic, with its offsets, `messages`, `holes`, `leader` |
| `mq_retries`      | group, topic and attempt: `messages` that were retried, and still `waiting` ones |
| `mq_delayed`      | delayed message that waits, with its `deliver_time` and `state`: `waiting`, `late`, `cancelled` |
| `mq_dead_letters` | dead letter, with its `reason`, origin and `state` |
| `mq_lost`         | range of offsets that a group could not read, with the `reason`             |
| `mq_brokers`      | broker, with the process that has it and how many `partitions` are its own  |
| `mq_clients`      | exclusive client and topic: its `partitions`, and their total `lag`         |
| `mq_statistics`   | minute of a group in a topic: messages `delivered`, `succeeded`, `failed`     |
| `mq_moves`        | group and move of keys by an expansion: whether the group has `passed` it   |
| `mq_audit`        | administrative act: principal, call, address, `outcome`, `before`, `after` |
| `mq_refusals`     | minute, principal, call and reason of refusals, with their `count`         |
| `mq_access_history` | access rule and time for which a principal had it, from `since` to `until` |
| `mq_history`      | sample of a gauge or rate: its `metric`, group, topic, process and `value` |
| `mq_values_<topic>` | value of a typed topic, with its fields as columns, then `mq_key`, `mq_partition`, `mq_offset` |
| `mq_quarantine_<topic>` | message of it that does not fit its schema, with `code`, `field` and `reason` |
| `mq_latest_<topic>` | key of it, with its newest value (`jobs.sql.latest_view`) |
| `job_shards`      | shard of a job that has run: its owner, its last run, its lag    |

Where a row is about a partition as it is stored, a segment of a static topic has `logical_queue`, the name that clients
know, and logical offsets beside the stored ones; they are null for plain topics, and while they are not decided.

Messages and end offsets are as of the query; the progress of groups is as of the last merge. Messages that were popped
without order in the last ten seconds may be only in the service's memory (`queue.stay_buffer_ms`). Each query evaluates
the views again. The first run of the merge job makes all state tables: views that were registered before it stay empty
until `register_views` is called again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

from deltamq.jobs.read.identifiers import latest_name, quarantine_name, values_name
from deltamq.jobs.read.row_format import MESSAGE_ROW
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.read.typed_columns import quarantine_columns, values_columns
from deltamq.jobs.spark.datasource import chosen_warehouse
from deltamq.jobs.sql.latest_view import latest_of
from deltamq.jobs.sql.queue_source import register_queue_sources
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.queue.ordered_pop import CONDEMNED, REJECTED
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.mq.static.queue_names import LOGICAL_BROKER
from deltamq.tables.config import Config, load
from deltamq.tables.queue.refs import TOPIC_LIVES_MAX
from deltamq.tables.state.schema import STATE_TABLES
from deltamq.tables.state.table import read_state_log
from deltamq.tables.typed_row import INVALID, TYPED, VALUE

#: The logical queue of each segment of a static topic, and the logical offset of its offset 0 (SPEC STATIC-1).
_SEGMENTS: Final = f"""(
        SELECT topic_id, partition, concat(queue, '@{LOGICAL_BROKER}') AS logical_queue,
               if(logic_offset < 0, NULL, logic_offset) AS logic_offset
        FROM mq_state_queue_mappings WHERE served
    )"""

_PARTITIONS: Final = f"""
    SELECT p.*, s.logical_queue, s.logic_offset + p.min_offset AS logical_min_offset,
           s.logic_offset + p.end_offset AS logical_end_offset
    FROM mq_stored_partitions p
    LEFT JOIN mq_state_topics t ON p.space = 'topics' AND t.topic = p.topic AND t.generation = p.generation
    LEFT JOIN {_SEGMENTS} s ON s.topic_id = t.topic_id AND s.partition = p.partition
"""

_STORED_IN_FLIGHT: Final = f"""
    SELECT `group`, topic_id, topic, partition, broker, retry,
           start_offset + coalesce(diffs[i], i) AS offset, attempts[i] AS attempt,
           pop_time, revive_time, invisible_ms, revive_time < current_timestamp() AS overdue, dead_reason,
           coalesce(given_back, false) AS given_back, merged_at
    FROM (
        SELECT *, explode(sequence(0, num - 1)) AS i FROM mq_state_pop_checkpoints WHERE in_flight > 0
    )
    WHERE getbit(acked | replaced | done, i) = 0
    UNION ALL
    SELECT `group`, topic_id, topic, partition, broker, retry, one.offset,
           cast(one.attempt % {CONDEMNED} AS int) AS attempt,
           timestamp_millis(one.pop_time_ms) AS pop_time,
           -- 0: no lease; a client of an exclusive group tries it in place.
           timestamp_millis(nullif(one.visible_ms, 0)) AS revive_time,
           nullif(one.visible_ms, 0) - one.pop_time_ms AS invisible_ms,
           one.visible_ms > 0 AND timestamp_millis(one.visible_ms) < current_timestamp() AS overdue,
           if(one.attempt >= {CONDEMNED}, '{REJECTED}', NULL) AS dead_reason,
           cast(NULL AS boolean) AS given_back, merged_at
    FROM (SELECT *, explode(delivered) AS one FROM mq_state_consumer_offsets)
"""

_IN_FLIGHT: Final = f"""
    SELECT f.* EXCEPT (topic_id), s.logical_queue, s.logic_offset + f.offset AS logical_offset
    FROM ({_STORED_IN_FLIGHT}) f
    LEFT JOIN {_SEGMENTS} s ON s.topic_id = f.topic_id AND s.partition = f.partition AND NOT f.retry
"""

_LANE_LAG: Final = f"""
    WITH owners AS (
        SELECT b.`group`, t.topic, t.topic_id, false AS retry, 'topics' AS space, t.topic AS stored_as, t.generation
        FROM (SELECT DISTINCT `group`, topic_id FROM mq_state_consumer_offsets) b
        JOIN mq_state_topics t ON t.topic_id = b.topic_id
        UNION ALL
        SELECT g.`group`, t.topic, t.topic_id, true AS retry, 'retry' AS space, concat(g.`group`, '/', t.topic),
               g.epoch * {TOPIC_LIVES_MAX} + t.generation
        FROM mq_state_groups g CROSS JOIN mq_state_topics t
    ),
    given AS (
        SELECT `group`, topic_id, retry, partition, sum(in_flight) AS in_flight
        FROM mq_state_pop_checkpoints GROUP BY ALL
    )
    SELECT o.`group`, o.topic, o.topic_id, p.partition, p.broker, o.retry,
           c.committed_offset, p.min_offset, p.end_offset,
           greatest(0, p.end_offset - greatest(coalesce(c.committed_offset, 0), p.min_offset)) AS lag,
           coalesce(f.in_flight, 0) + coalesce(array_size(c.delivered), 0) AS in_flight, c.merged_at
    FROM owners o
    JOIN mq_stored_partitions p ON p.space = o.space AND p.topic = o.stored_as AND p.generation = o.generation
    LEFT JOIN mq_state_consumer_offsets c
      ON c.`group` = o.`group` AND c.topic_id = o.topic_id AND c.retry = o.retry AND c.partition = p.partition
    LEFT JOIN given f
      ON f.`group` = o.`group` AND f.topic_id = o.topic_id AND f.retry = o.retry AND f.partition = p.partition
"""

#: Plain topics have their partitions, static topics their logical queues: there, offsets are logical, and `lag` counts
#: the messages of all segments. A group is in the oldest segment that it has not consumed to its end. If it has
#: committed nothing there, its offset is the end of the newest earlier segment in which it has (SPEC STATIC-15, 16,
#: 25).
_LAG: Final = f"""
    WITH segments AS (
        SELECT topic_id, queue, gen, partition, logic_offset, end_offset AS sealed_end
        FROM mq_state_queue_mappings WHERE served
    ),
    segment_lanes AS (
        SELECT l.*, s.queue, s.gen, s.logic_offset, s.sealed_end,
               s.logic_offset >= 0 AS decided,
               greatest(coalesce(l.committed_offset, 0), l.min_offset) AS position,
               s.sealed_end >= 0 AND greatest(coalesce(l.committed_offset, 0), l.min_offset) >= s.sealed_end AS consumed
        FROM mq_lane_lag l
        LEFT JOIN segments s ON s.topic_id = l.topic_id AND s.partition = l.partition AND NOT l.retry
    ),
    lanes AS (
        SELECT *, coalesce(min(gen) FILTER (WHERE decided AND NOT consumed) OVER its, max(gen) FILTER (WHERE decided)
               OVER its) AS at_gen
        FROM segment_lanes WINDOW its AS (PARTITION BY `group`, topic, queue)
    )
    SELECT `group`, topic, partition, broker, retry, committed_offset, min_offset, end_offset, lag, in_flight, merged_at
    FROM lanes WHERE queue IS NULL
    UNION ALL
    SELECT `group`, topic, concat(queue, '@{LOGICAL_BROKER}') AS partition, max_by(broker, gen) AS broker,
           false AS retry,
           if(count(committed_offset) = 0, NULL, coalesce(
               max_by(logic_offset + if(sealed_end >= 0, least(committed_offset, sealed_end), committed_offset), gen)
                   FILTER (WHERE decided AND committed_offset IS NOT NULL AND gen <= at_gen),
               max_by(logic_offset + position, gen) FILTER (WHERE gen = at_gen)
           )) AS committed_offset,
           min_by(logic_offset + min_offset, gen) FILTER (WHERE decided) AS min_offset,
           max_by(logic_offset + end_offset, gen) FILTER (WHERE decided) AS end_offset,
           sum(lag) AS lag, sum(in_flight) AS in_flight, max(merged_at) AS merged_at
    FROM lanes WHERE queue IS NOT NULL GROUP BY `group`, topic, queue
"""

_LOGICAL_QUEUES: Final = f"""
    WITH stored AS (
        SELECT m.topic_id, m.queue, m.gen, m.partition, m.holder, m.logic_offset, m.logic_offset >= 0 AS decided,
               coalesce(p.min_offset, greatest(m.end_offset, 0)) AS low,
               coalesce(p.end_offset, greatest(m.end_offset, 0)) AS high,
               lead(m.logic_offset) OVER (PARTITION BY m.topic_id, m.queue ORDER BY m.gen) AS next_logic
        FROM mq_state_queue_mappings m
        JOIN mq_state_topics t ON t.topic_id = m.topic_id
        LEFT JOIN mq_stored_partitions p
          ON p.space = 'topics' AND p.topic = t.topic AND p.generation = t.generation AND p.partition = m.partition
        WHERE m.served
    ),
    served AS (
        SELECT topic_id, queue,
               min_by(logic_offset + low, gen) FILTER (WHERE decided) AS min_offset,
               max_by(logic_offset + high, gen) FILTER (WHERE decided) AS max_offset,
               sum(high - low) AS messages,
               sum(greatest(0, coalesce(next_logic - logic_offset - high, 0))) AS holes,
               cast(count(*) AS int) AS segments, max_by(partition, gen) AS leader, max_by(holder, gen) AS broker,
               if(max_by(decided, gen), 'open', 'undecided') AS state
        FROM stored GROUP BY topic_id, queue
    ),
    wanted AS (
        SELECT topic, topic_id, epoch, explode(sequence(0, total_queues - 1)) AS queue
        FROM (
            SELECT topic, topic_id, max(epoch) AS epoch, max(total_queues) AS total_queues
            FROM mq_state_queue_mappings GROUP BY topic, topic_id
        )
    )
    SELECT w.topic, w.topic_id, w.epoch, w.queue, concat(w.queue, '@{LOGICAL_BROKER}') AS partition,
           s.min_offset, s.max_offset, s.messages, s.holes, s.segments, s.leader, s.broker,
           coalesce(s.state, 'unserved') AS state
    FROM wanted w LEFT JOIN served s ON s.topic_id = w.topic_id AND s.queue = w.queue
"""

_RETRIES: Final = f"""
    SELECT r.`group`, r.topic, r.reconsume_times + 1 AS attempt, count(*) AS messages,
           count_if(r.offset >= coalesce(c.committed_offset, 0)) AS waiting, min(r.append_time) AS oldest
    FROM mq_retry_messages r
    JOIN mq_state_groups g ON g.`group` = r.`group`
    JOIN mq_state_topics t ON t.topic = r.topic AND r.generation = g.epoch * {TOPIC_LIVES_MAX} + t.generation
    LEFT JOIN mq_state_consumer_offsets c
      ON c.`group` = r.`group` AND c.topic_id = t.topic_id AND c.retry AND c.partition = r.partition
    GROUP BY ALL
"""

_DEAD: Final = f"""
    SELECT `group`, headers['{DEAD_REASON_HEADER}'] AS reason, reconsume_times AS attempts,
           origin.topic AS topic, origin.partition AS origin_partition, origin.offset AS origin_offset,
           partition, offset, message_id, key, tag, headers, body, born_time, append_time AS dead_time,
           state, sent_back_time, sent_back_by
    FROM mq_dead_messages
"""

#: A target is stored with the id of its topic, so that a topic of the same name that is made later does not get it.
_DELAYED: Final = """
    SELECT split(origin.topic, '/', 2)[1] AS topic, split(origin.topic, '/', 2)[0] AS topic_id,
           origin.partition AS partition, message_id, key, tag, headers, body, born_time, append_time AS sent_time,
           deliver_time,
           CASE WHEN is_cancelled THEN 'cancelled' WHEN deliver_time <= current_timestamp() THEN 'late'
                ELSE 'waiting' END AS state,
           partition AS delay_partition, offset AS delay_offset
    FROM mq_delayed_messages
"""

_LOST: Final = f"""
    SELECT l.`group`, l.topic, l.partition, l.broker, l.retry, l.low, l.high, l.high - l.low AS messages, l.reason,
           l.lost_time, s.logical_queue, s.logic_offset + l.low AS logical_low, s.logic_offset + l.high AS logical_high
    FROM mq_state_lost_messages l
    LEFT JOIN {_SEGMENTS} s ON s.topic_id = l.topic_id AND s.partition = l.partition AND NOT l.retry
"""

_STATISTICS: Final = """
    SELECT minute, `group`, topic, sum(delivered) AS delivered, sum(redelivered) AS redelivered,
           sum(succeeded) AS succeeded, sum(failed) AS failed, sum(dead) AS dead,
           sum(succeeded) / nullif(sum(succeeded + failed + dead), 0) AS success_rate,
           sum(age_ms) / nullif(sum(delivered), 0) AS mean_age_ms, max(age_max_ms) AS longest_age_ms,
           sum(handling_ms) / nullif(sum(succeeded + failed + dead), 0) AS mean_handling_ms,
           max(handling_max_ms) AS longest_handling_ms
    FROM mq_state_group_statistics GROUP BY minute, `group`, topic
"""

_BROKERS: Final = """
    SELECT b.broker, b.epoch, b.host IS NOT NULL AS online, b.host, b.address, b.stand_in,
           count(p.partition) AS partitions
    FROM mq_state_brokers b
    LEFT JOIN (SELECT DISTINCT topic_id, partition, broker FROM mq_state_routes) p ON p.broker = b.broker
    GROUP BY ALL
"""

_CLIENTS: Final = """
    WITH given AS (
        SELECT a.`group`, a.topic, a.client, array_sort(collect_list(a.partition)) AS partitions, sum(l.lag) AS lag
        FROM mq_state_allocations a
        LEFT JOIN mq_lag l
          ON l.`group` = a.`group` AND l.topic = a.topic AND l.partition = a.partition AND NOT l.retry
        GROUP BY ALL
    )
    SELECT c.`group`, c.client, c.one.topic, c.one.in_order, c.one.tags, c.leaving, c.since_time,
           coalesce(g.partitions, array()) AS partitions, coalesce(g.lag, 0) AS lag
    FROM (SELECT *, explode(topics) AS one FROM mq_state_clients) c
    LEFT JOIN given g ON g.`group` = c.`group` AND g.client = c.client AND g.topic = c.one.topic
"""

_MOVES: Final = """
    WITH moves AS (
        SELECT topic, route_epoch, source, target, end_offset, sum(lp_high - lp_low) AS logical_partitions
        FROM mq_state_moves GROUP BY ALL
    )
    SELECT l.`group`, m.*, l.committed_offset,
           coalesce(greatest(coalesce(l.committed_offset, 0), l.min_offset) >= m.end_offset, false) AS passed
    FROM moves m
    LEFT JOIN mq_lane_lag l ON l.topic = m.topic AND l.partition = m.source AND NOT l.retry
"""

#: Each act once, however often its records are stored; the end that its own process stored counts before an end that
#: another process has stored (status 0).
_AUDIT: Final = """
    WITH begun AS (
        SELECT from_json(cast(body AS string), 'id STRING, time_ms BIGINT, principal STRING, address STRING,
            process STRING, call STRING, resource STRING, name STRING, asked STRING') AS r
        FROM mq_audit_records WHERE tag = 'begun'
    ),
    ended AS (
        SELECT from_json(cast(body AS string), 'id STRING, time_ms BIGINT, outcome STRING, status INT, code STRING,
            detail STRING, events ARRAY<STRING>, before STRING, after STRING') AS r
        FROM mq_audit_records WHERE tag = 'ended'
    ),
    begins AS (SELECT r.id, max_by(r, r.time_ms) AS r FROM begun GROUP BY r.id),
    ends AS (SELECT r.id, max_by(r, r.status) AS r FROM ended GROUP BY r.id)
    SELECT b.id, timestamp_millis(b.r.time_ms) AS time, b.r.principal, b.r.address, b.r.process, b.r.call, b.r.resource,
           b.r.name, b.r.asked, coalesce(e.r.outcome, 'unknown') AS outcome, nullif(e.r.status, 0) AS status,
           nullif(e.r.code, '') AS code, nullif(e.r.detail, '') AS detail, e.r.events, nullif(e.r.before, '') AS before,
           nullif(e.r.after, '') AS after, timestamp_millis(e.r.time_ms) AS end_time
    FROM begins b LEFT JOIN ends e ON e.id = b.id
"""

_REFUSALS: Final = """
    SELECT timestamp_millis(r.minute_ms) AS minute, r.principal, r.call, r.status, r.code, r.count, r.address, r.process
    FROM (
        SELECT r.id, max_by(r, r.count) AS r
        FROM (
            SELECT from_json(cast(body AS string), 'id STRING, minute_ms BIGINT, process STRING, principal STRING,
                call STRING, status INT, code STRING, count BIGINT, address STRING') AS r
            FROM mq_audit_records WHERE tag = 'refused'
        )
        GROUP BY r.id
    )
"""

#: Between two acts, a principal had the rules that the later act found; after the last act, the rules that it left. So
#: an act whose end another process has stored, without the rules that it left, makes no hole.
_ACCESS_HISTORY: Final = """
    WITH acts AS (
        SELECT time, explode(map_keys(from_json(coalesce(after, before), 'MAP<STRING, STRING>'))) AS resource,
               from_json(before, 'MAP<STRING, STRING>') AS before, from_json(after, 'MAP<STRING, STRING>') AS after
        FROM mq_audit WHERE after IS NOT NULL OR before IS NOT NULL
    ),
    states AS (
        SELECT substr(resource, 6) AS principal, time AS since, lead(time) OVER following AS until,
               coalesce(lead(before[resource]) OVER following, after[resource]) AS state
        FROM acts WHERE resource LIKE 'auth/%'
        WINDOW following AS (PARTITION BY resource ORDER BY time)
    )
    SELECT principal, since, until, rule.id AS acl_id, rule.effect, rule.resource, rule.pattern, rule.verbs
    FROM (
        SELECT *, explode(from_json(state, 'acls ARRAY<STRUCT<id: STRING, effect: STRING, resource: STRING,
            pattern: STRING, verbs: ARRAY<STRING>>>').acls) AS rule
        FROM states
    )
"""

#: Each minute once, however often its record is stored.
_HISTORY: Final = """
    SELECT timestamp_millis(r.start_ms + r.step_ms * step) AS time, metric, nullif(r.`group`, '') AS `group`,
           nullif(r.topic, '') AS topic, r.process, max(value) AS value
    FROM (
        SELECT metric, r, step, value
        FROM (
            SELECT tag AS metric, from_json(cast(body AS string), '`group` STRING, topic STRING, process STRING,
                start_ms BIGINT, step_ms BIGINT, values ARRAY<DOUBLE>') AS r
            FROM mq_history_records
        )
        LATERAL VIEW posexplode(r.values) AS step, value
    )
    WHERE value IS NOT NULL
    GROUP BY ALL
"""

#: The views by name, in an order in which each view uses only earlier ones.
VIEWS: Final = {
    "mq_partitions": _PARTITIONS,
    "mq_in_flight": _IN_FLIGHT,
    "mq_lane_lag": _LANE_LAG,
    "mq_lag": _LAG,
    "mq_logical_queues": _LOGICAL_QUEUES,
    "mq_retries": _RETRIES,
    "mq_delayed": _DELAYED,
    "mq_dead_letters": _DEAD,
    "mq_lost": _LOST,
    "mq_statistics": _STATISTICS,
    "mq_brokers": _BROKERS,
    "mq_clients": _CLIENTS,
    "mq_moves": _MOVES,
    "mq_audit": _AUDIT,
    "mq_refusals": _REFUSALS,
    "mq_access_history": _ACCESS_HISTORY,
    "mq_history": _HISTORY,
}


def register_views(spark: SparkSession, conf: Config | None = None) -> list[str]:
    """Create the views of the module's table in a session.

    Parameters
    ----------
    spark
        A session of `jobs.sql.spark_session`, or any with Delta.
    conf
        The settings that name the warehouse; by default it is the session's, or the profile's.

    Returns
    -------
    list of str
        The names of the views.

    Examples
    --------
    >>> register_views(spark)                                                     # doctest: +SKIP
    >>> spark.sql("SELECT * FROM mq_lag WHERE lag > 0 ORDER BY lag DESC").show()  # doctest: +SKIP
    """
    warehouse, cluster = chosen_warehouse(spark, conf), (conf or load()).warehouse.cluster
    register_queue_sources(spark)
    _source_view(spark, "mq_stored_partitions", "mq_partitions", warehouse=warehouse)
    _source_view(spark, "mq_retry_messages", "mq_space", warehouse=warehouse, space="retry")
    _source_view(spark, "mq_dead_messages", "mq_space", warehouse=warehouse, space="dlq")
    _source_view(spark, "mq_delayed_messages", "mq_space", warehouse=warehouse, space="delay", cluster=cluster)
    _source_view(spark, "mq_audit_records", "mq_space", warehouse=warehouse, space="audit")
    _source_view(spark, "mq_history_records", "mq_space", warehouse=warehouse, space="history")
    _source_view(spark, "job_shards", "mq_jobs", warehouse=warehouse)
    for table in STATE_TABLES:
        _state_view(spark, table, warehouse)
    for name, query in VIEWS.items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}")
    return ["job_shards", *VIEWS, *_typed_views(spark, warehouse)]


def _typed_views(spark: SparkSession, warehouse: str) -> Iterator[str]:
    """Make the views of topics that have a schema now; like streams, they keep the fields that it has now.

    They read new messages, also of partitions that are made later, and by statistics no file that does not matter.
    """
    store = storage(warehouse)
    catalog = Catalog(store)
    for topic in catalog.typed_topics():
        read = partial(read_topic, spark, topic, warehouse=warehouse, typed=True, quarantined=True)
        # Without bodies, which may have to be made of values, the tables are read natively.
        rows = read(columns=",".join(name for name in (*MESSAGE_ROW.names, *TYPED) if name != "body"))
        values = to_arrow_type(rows.schema[VALUE].dataType, timezone="UTC")
        made = rows.where(f"{VALUE} IS NOT NULL").selectExpr(*values_columns(values, values, {}))
        yield _named(made, f"mq_{values_name(topic)}")
        # What does not fit has a body.
        rows = read(columns=",".join((*MESSAGE_ROW.names, INVALID)))
        made = rows.where(f"{INVALID} IS NOT NULL").selectExpr(*quarantine_columns({}))
        yield _named(made, f"mq_{quarantine_name(topic)}")
        yield _named(latest_of(spark, store, catalog, topic, warehouse), f"mq_{latest_name(topic)}")


def _named(frame: DataFrame, name: str) -> str:
    frame.createOrReplaceTempView(name)
    return name


def _source_view(spark: SparkSession, name: str, source: str, **options: str) -> None:
    spark.read.format(source).options(**options).load().createOrReplaceTempView(name)


def _state_view(spark: SparkSession, table: str, warehouse: str) -> None:
    """Each query reads the state table again; the view is empty before the first run of the merge job."""
    name = f"mq_state_{table.rpartition('/')[2]}"
    store = storage(warehouse)
    if read_state_log(store, table) is None:
        spark.createDataFrame([], from_arrow_schema(STATE_TABLES[table])).createOrReplaceTempView(name)
        return
    location = store.uri(table).replace("`", "``")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS SELECT * FROM delta.`{location}`")
