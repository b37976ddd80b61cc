"""The tasks of a query agree on what the first of them made (SPEC SPARK-13)."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext

from deltamq.jobs.tasks import query_values
from deltamq.jobs.tasks.query_values import READS, QueryId, agreed, agreed_rows, current_query, forget_queries
from deltamq.mq.errors import Refused, Unavailable, Unknown
from deltamq.tables.store.store import ListedFile, MemoryStore


@pytest.fixture(autouse=True)
def _other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is as in another worker, which remembers nothing."""
    monkeypatch.setattr(query_values, "_REMEMBERED_MAX", 0)


def test_spark_13_the_first_of_a_querys_tasks_decides() -> None:
    store, query = MemoryStore(), QueryId("app", 7)
    assert agreed(store, query, "topic", lambda: b"first") == b"first"
    assert agreed(store, query, "topic", lambda: b"second") == b"first"
    assert agreed(store, query, "other", lambda: b"second") == b"second"
    assert agreed(store, QueryId("app", 8), "topic", lambda: b"second") == b"second"
    rows = pa.table({"a": [1, None]})
    assert agreed_rows(store, query, "rows", lambda: rows).equals(rows)


def test_spark_13_of_two_at_once_both_take_that_of_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    store, query = MemoryStore(), QueryId("app", 7)

    def slow() -> bytes:
        agreed(store, query, "topic", lambda: b"winner")
        return b"loser"

    assert agreed(store, query, "topic", slow) == b"winner"
    real = store.put_if_absent

    def unknown(key: str, data: bytes, *, durable: bool) -> bool:
        real(key, data, durable=durable)
        raise Unknown("no answer")

    monkeypatch.setattr(store, "put_if_absent", unknown)
    assert agreed(store, query, "another", lambda: b"mine") == b"mine"


def test_spark_13_who_cannot_write_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()

    def refuse(*_: object, **__: object) -> bool:
        raise Unavailable("read-only", code="storage_error")

    monkeypatch.setattr(store, "put_if_absent", refuse)
    with pytest.raises(Refused, match="asOfTime") as refused:
        agreed(store, QueryId("app", 1), "topic", lambda: b"x")
    assert refused.value.code == "query_not_agreed"


def test_spark_13_values_of_queries_that_are_over_go() -> None:
    store = MemoryStore()
    for number in (1, 100, 1_100):
        agreed(store, QueryId("app", number), "topic", lambda: b"x")
    assert len(store.names(f"{READS}/app")) == 3
    agreed(store, QueryId("app", 1_152), "topic", lambda: b"x")
    assert [int(name[:12]) for name in store.names(f"{READS}/app")] == [1_100, 1_152]


def test_spark_13_what_applications_left_goes_a_day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    store, day = MemoryStore(), 86_400_000
    for application in ("old", "new"):
        agreed(store, QueryId(application, 1), "topic", lambda: b"x")
    times = {"old": 0, "new": day}
    monkeypatch.setattr(store, "entries", lambda folder: [ListedFile("f", 1, times[folder.rpartition("/")[2]])])
    forget_queries(store, day + 1)
    assert store.folders(READS) == ["new"]


def test_spark_13_outside_of_tasks_a_plan_is_its_own_query() -> None:
    assert current_query("one") == current_query("one") != current_query("two")


def test_spark_13_queries_in_a_streams_batch_are_their_own_and_those_of_a_statement_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(**more: str) -> int:
        properties = {"spark.sql.execution.root.id": "7", "spark.sql.execution.id": "9"} | more
        monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=properties.get))
        return current_query("plan").number

    assert asked() == 7
    assert asked(**{"sql.streaming.queryId": "q"}) == 9
