"""A service that is killed anywhere in calls about groups and delays: repeating them ends as without a kill."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltamq.mq.queue.delay import Cancelled
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.records import delay_marks_of
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, dead_ref, system_ref
from deltamq.tables.schema import INTERNAL_SCHEMA
from tests.api.test_serve import Process, serving

BROKERS = ("broker-a", "broker-b")
HOUR_MS = 3_600_000
MIXED = [
    {"body": f"m{i}", "partition": f"orders@{BROKERS[i // 2 % 2]}", **({"delay_ms": HOUR_MS} if i % 2 else {})}
    for i in range(8)
]
LATER = [{"key": f"k{i}", "body": f"w{i}", "delay_ms": HOUR_MS, "message_id": f"w{i}"} for i in range(4)]
GROUP, OFFSETS = "/v1/groups/billing", "/v1/groups/billing/topics/orders/offsets"
#: Every call of it may be repeated.
SCRIPT: list[tuple[str, str, object]] = [
    ("PUT", "/v1/topics/orders", {"partitions": 2}),
    ("PUT", GROUP, {"max_attempts": 3}),
    ("POST", "/v1/topics/orders/messages", {"messages": MIXED, "producer": {"id": "p", "seq": 0}}),
    ("POST", "/v1/topics/orders/messages", {"messages": LATER, "producer": {"id": "p", "seq": 1}}),
    ("PUT", OFFSETS, {"offsets": {"orders@broker-a": 1, "orders@broker-b": 1}}),
    ("DELETE", "/v1/topics/orders/messages/w2", None),
    ("POST", f"{GROUP}/dead-letters/replay", {"to": "retry"}),
    ("POST", f"{OFFSETS}/reset", {"to": {"orders@broker-a": 0}}),
    ("PUT", OFFSETS, {"offsets": {"orders@broker-b": 2}}),
]
POINTS = ("batch.before_close", "commit.after_data_write", "commit.after_link", "commit.after_dir_fsync")


def call(process: Process, method: str, path: str, body: object) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)) as connection:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {} if body is None else {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 400, content
        return json.loads(content) if content else None


def play(process: Process) -> None:
    for method, path, body in SCRIPT:
        call(process, method, path, body)


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("batch.before_close", 6),
        ("commit.after_data_write", 7),
        ("commit.after_dir_fsync", 11),
        ("commit.after_link", 14),
        ("commit.after_link", 18),
        ("replay.before_mark", 1),
        # The first of them are hit while it starts, the last perhaps not at all.
        *(pytest.param(p, n, marks=pytest.mark.long) for p, n in product(POINTS, range(8, 36))),
    ],
)
def test_f2_calls_that_are_repeated_after_a_kill_end_where_they_would(
    tmp_path: Path, point: str, nth: int, request: pytest.FixtureRequest
) -> None:
    bury(tmp_path, 3)
    killed = False
    with serving(tmp_path, DELTAMQ_FAILPOINTS=f"{point}=kill@{nth}") as process:
        try:
            play(process)
        except (OSError, http.client.HTTPException):
            killed = process.wait() == -signal.SIGKILL
    assert killed or request.node.get_closest_marker("long"), "the point was not hit"
    with serving(tmp_path) as process:
        play(process)
        view = call(process, "GET", OFFSETS, None)
        assert view["offsets"].items() >= {"orders@broker-a": 0, "orders@broker-b": 2}.items()
        retries = {p["partition"]: p["end_offset"] for p in view["partitions"] if p["retry"]}
        assert retries == {"%RETRY%billing_orders@broker-a": 3}
        letters = call(process, "GET", f"{GROUP}/dead-letters", None)["messages"]
        assert [one["state"] for one in letters] == ["sent_back"] * 3
        assert sorted(process.stored()) == ["m0", "m2", "m4", "m6"]
        assert call(process, "GET", GROUP, None)["max_attempts"] == 3
    waiting, cancelled = what_waits(tmp_path)
    assert sorted(waiting.values()) == ["m1", "m3", "m5", "m7", "w0", "w1", "w2", "w3"]
    assert {waiting[place] for place in cancelled} == {"w2"}


def bury(folder: Path, count: int) -> None:
    """Dead letters of the first life of the group, there before it is."""
    origin = {"topic": "orders", "partition": "orders@broker-a", "offset": 0}
    letter = {"body": b"dead", "headers": [(DEAD_REASON_HEADER, "max_attempts")], "origin": origin}
    warehouse = Warehouse.open(str(folder))
    rows = pa.RecordBatch.from_pylist([letter] * count, schema=INTERNAL_SCHEMA)
    warehouse.create(dead_ref("billing", 1, "broker-a")).append([Batch(rows)])
    warehouse.close()


def what_waits(folder: Path) -> tuple[dict[tuple[str, int], str], set[tuple[str, int]]]:
    """The bodies of what waits by place, and the places that are cancelled."""
    warehouse = Warehouse.open(str(folder))
    waiting, cancelled = dict[tuple[str, int], str](), set[tuple[str, int]]()
    for broker in BROKERS:
        ref = system_ref(DELAY, "deltamq", broker)
        for rows in _pages(warehouse, DELAY, broker):
            for offset, body in zip(rows["offset"].to_pylist(), rows["body"].to_pylist(), strict=True):
                waiting[ref.name, offset] = body.decode()
        for rows in _pages(warehouse, DELAY_MARKS, broker):
            marks = [mark for mark in delay_marks_of(rows) if isinstance(mark, Cancelled)]
            cancelled |= {(mark.delay_partition, mark.offset) for mark in marks}
    warehouse.close()
    return waiting, cancelled


def _pages(warehouse: Warehouse, kind: str, broker: str) -> Iterator[pa.Table]:
    ref = system_ref(kind, "deltamq", broker)
    if warehouse.exists(ref):
        yield from (page.rows for page in pages(warehouse.open_partition(ref), 0))
