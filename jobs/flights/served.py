"""The service's side: the whole topic as returned by REST."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from deltamq.jobs.flights.account import ROWS_SCHEMA, Account, account_of
from deltamq.jobs.flights.child import JobFailed
from deltamq.mq.client.http.endpoint import Endpoint, path_of
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.limits import MIB
from deltamq.mq.wire.topics import TopicInfo

ARROW: Final = "application/vnd.apache.arrow.stream"
FETCH_MESSAGES: Final = 100_000
FETCH_BYTES: Final = 32 * MIB


def served_account(endpoint: Endpoint, topic: TopicInfo) -> Account:
    """Fetch every message of `topic` and return their account; the end offsets are from the topic's description."""
    ends = topic.max_offsets()
    parts = [_rows(endpoint, topic.topic, partition, end_offset) for partition, end_offset in ends.items()]
    return account_of(pa.concat_tables(parts), ends=ends, in_row_order=False)


def _rows(endpoint: Endpoint, topic: str, partition: str, end_offset: int) -> pa.Table:
    batches = list(_fetched(endpoint, topic, partition, end_offset))
    rows = pa.concat_tables(batches) if batches else ROWS_SCHEMA.remove(0).empty_table()
    return rows.add_column(0, ROWS_SCHEMA.field("partition"), pa.repeat(partition, len(rows)))


def _fetched(endpoint: Endpoint, topic: str, partition: str, end_offset: int) -> Iterator[pa.Table]:
    offset = 0
    while offset < end_offset:
        call = endpoint.call(
            "GET",
            path_of("topics", topic, "partitions", partition, "messages"),
            query={"offset": offset, "max_messages": FETCH_MESSAGES, "max_bytes": FETCH_BYTES},
            headers={"Accept": ARROW},
            timeout_s=60,
        )
        answer = run_now(call)
        with pa.ipc.open_stream(answer.body) as stream:
            yield stream.read_all().select(ROWS_SCHEMA.names[1:]).cast(pa.schema(list(ROWS_SCHEMA)[1:]))
        next_offset = int(answer.headers["mq-next-offset"])
        if next_offset <= offset:
            raise JobFailed(f"{partition}: the service returns nothing at offset {offset:,}; the end is {end_offset:,}")
        offset = next_offset
