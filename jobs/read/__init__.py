"""What a read covers and how its rows reach Spark: ranges of offsets, a filter, columns."""

from __future__ import annotations

from deltamq.jobs.read.identifiers import dead_letters_name, literal, partition_name, quoted, topic_name
from deltamq.jobs.read.offset_range import (
    check_named,
    check_queue_names,
    check_start_found,
    offset_of,
    resolve,
    selected,
    split,
    stored_partitions,
)
from deltamq.jobs.read.options import EARLIEST, LATEST, Mode, ReadOptions, Strategy, parse_options
from deltamq.jobs.read.query_topics import SharePartition, plan_shares, ranges_of_share
from deltamq.jobs.read.range_reader import ROWS_PER_TASK_MAX, RangePartition, RangeRows, read_range
from deltamq.jobs.read.row_format import schema_of, sql_columns
from deltamq.jobs.read.stored_partition import OffsetRange, StoredPartition, StoredTable, TimeSearch
from deltamq.jobs.read.topics import Catalog, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "ROWS_PER_TASK_MAX",
    "Catalog",
    "Mode",
    "OffsetRange",
    "RangePartition",
    "RangeRows",
    "ReadOptions",
    "SharePartition",
    "StoredPartition",
    "StoredTable",
    "Strategy",
    "TimeSearch",
    "TopicPartition",
    "check_named",
    "check_queue_names",
    "check_start_found",
    "dead_letters_name",
    "literal",
    "offset_of",
    "parse_options",
    "partition_name",
    "plan_shares",
    "quoted",
    "ranges_of_share",
    "read_range",
    "resolve",
    "schema_of",
    "selected",
    "split",
    "sql_columns",
    "stored_partitions",
    "topic_name",
]
