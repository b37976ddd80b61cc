"""Two applications go on from one checkpoint: the later one goes on, the earlier one ends by name (SPARK-22, 24)."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from deltamq.jobs.sink.stream_run import StreamRun, check_claim
from deltamq.jobs.tasks.checkpoint_claims import CheckpointClaims, CheckpointTaken, Claimant, forget_claims
from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.topics import Topic
from deltamq.mq.streams import CLAIMS_KEPT, StreamOffset, TopicOffset
from deltamq.tables.store.store import ListedFile, MemoryStore
from tests.queue_tables import QueueTables
from tests.unit.jobs.stream.driven import Stream

AT = StreamOffset(warehouse="w", stream="s", topics={"t": TopicOffset("id", {"a": 4})})
NAMED = Claimant(application="local-17", host="bigbox", pid=4711)


@pytest.fixture
def orders(tables: QueueTables) -> Topic:
    topic = tables.topic()
    tables.send(topic, "a", "b")
    return topic


def _again(stream: Stream) -> Stream:
    """Return the query as another application runs it."""
    return Stream(stream.reader._options.warehouse, json.loads(json.dumps(stream.at)), maxOffsetsPerTrigger="1")


def test_spark_22_the_earlier_of_two_applications_ends_at_its_next_batch(tables: QueueTables, orders: Topic) -> None:
    first = Stream(tables.warehouse.uri, maxOffsetsPerTrigger="1")
    assert len(first.batch()) == 1
    second = _again(first)
    assert len(second.batch()) == 1
    tables.send(orders, "c")
    with pytest.raises(CheckpointTaken, match=r"taken over by an application \(host .+, process \d+, since 2.+Z\)"):
        first.end()
    assert len(second.batch()) == 1
    first.reader.stop()


def test_spark_22_who_planned_the_batch_goes_on_where_spark_fails_the_later_one(
    tables: QueueTables, orders: Topic
) -> None:
    first = Stream(tables.warehouse.uri, maxOffsetsPerTrigger="1")
    first.batch()
    second = _again(first)
    planned = first.end()
    second.end()  # Spark fails it here: the checkpoint has that batch
    first.at = planned
    assert len(first.batch()) == 0
    tables.send(orders, "c", "d")
    assert len(first.batch()) == 1
    with pytest.raises(CheckpointTaken):
        second.end()


def test_spark_22_a_batch_is_not_done_again_where_the_earlier_run_has_planned_the_next_one(
    tables: QueueTables, orders: Topic
) -> None:
    first = Stream(tables.warehouse.uri, maxOffsetsPerTrigger="1")
    begin, end = first.at, first.end()
    first.read(begin, end)
    first.at = end
    late = first.end()
    second, found = _again(first), []

    def repeat() -> None:
        try:
            second.read(begin, end)
        except CheckpointTaken:
            found.append("taken")

    repeating = threading.Thread(target=repeat)
    repeating.start()
    first.at = late
    while repeating.is_alive():
        tables.send(orders, "c")
        first.batch()
        repeating.join(0.05)
    assert found == ["taken"]


def test_spark_22_a_query_that_has_nothing_to_read_ends_as_well(tables: QueueTables, orders: Topic) -> None:
    first = Stream(tables.warehouse.uri)
    first.all_of_it()
    second = _again(first)
    assert second.batch() == []
    with pytest.raises(CheckpointTaken):
        while first.batch() == []:
            pass


def test_spark_22_a_batch_is_not_done_beside_the_run_that_may_be_at_it(tables: QueueTables, orders: Topic) -> None:
    first = Stream(tables.warehouse.uri)
    end = first.end()
    rows = first.read(first.at, end)
    second, found = _again(first), []
    repeating = threading.Thread(target=lambda: found.append(second.read(first.at, end)))
    repeating.start()
    first.at = end
    with pytest.raises(CheckpointTaken):  # what the earlier application does after its batch
        while first.batch() == []:
            pass
    assert found == []
    first.reader.stop()
    repeating.join(60)
    assert found == [rows]


def test_spark_22_a_new_query_is_another_stream_and_disturbs_nobody(tables: QueueTables, orders: Topic) -> None:
    first, second = Stream(tables.warehouse.uri), Stream(tables.warehouse.uri)
    assert first.at["stream"] != second.at["stream"]
    for _ in range(2):
        tables.send(orders, "c")
        assert first.batch() == second.batch() != []


def test_spark_22_a_position_of_before_gets_its_name_with_the_next_batch(tables: QueueTables, orders: Topic) -> None:
    first = Stream(tables.warehouse.uri)
    del first.at["stream"]
    first.batch()
    assert first.at["stream"]


class _Denied(MemoryStore):
    """A store that takes no files."""

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        raise Unavailable("AccessDenied")


def test_spark_22_where_nothing_can_be_written_the_query_goes_on_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    CheckpointClaims(_Denied(), NAMED).check(AT)
    assert "checkpoint_not_guarded stream=s detail='AccessDenied'" in caplog.text


class _Asked(MemoryStore):
    """A store that counts listings and puts."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def names(self, folder: str) -> list[str]:
        self.asked.append("list")
        return super().names(folder)

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        self.asked.append("put")
        return super().put_if_absent(key, data, durable=durable)


def test_spark_22_a_look_is_one_listing_and_few_claims_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    store = _Asked()
    for _ in range(CLAIMS_KEPT + 3):
        last = CheckpointClaims(store, NAMED)
        last.check(AT)
    assert len(store.names("jobs/streams/s")) == CLAIMS_KEPT
    store.asked.clear()
    last.check(AT)
    last.begin(AT)
    last.check(AT, idle=True)
    assert store.asked == ["list"]
    with caplog.at_level(logging.WARNING):
        newer = CheckpointClaims(store, NAMED)
        newer.check(AT)
    with pytest.raises(CheckpointTaken, match=r"application local-17 \(host bigbox, process 4711, since 20"):
        last.check(AT)


def _late(store: MemoryStore, other: Callable[[], Any]) -> MemoryStore:
    """Return the store as one sees it that sleeps before its put, while `other` is done."""

    class Late(MemoryStore):
        def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
            other()
            return store.put_if_absent(key, data, durable=durable)

        def names(self, folder: str) -> list[str]:
            return store.names(folder)

    return Late()


def test_spark_22_of_two_that_claim_at_once_one_ends() -> None:
    store = MemoryStore()
    first = CheckpointClaims(store, NAMED)
    second = CheckpointClaims(_late(store, lambda: first.check(AT)), NAMED)
    ended = 0
    for one in (second, first):
        try:
            one.check(AT)
        except CheckpointTaken:
            ended += 1
    assert ended == 1


def test_spark_24_the_earlier_of_two_that_only_write_ends_unless_it_has_planned_the_next_batch() -> None:
    store = MemoryStore()

    def commit(run: str, batch: int) -> None:
        check_claim(store, NAMED, StreamRun("q", run, batch))

    commit("first", 4)
    commit("first", 5)
    commit("second", 5)
    with pytest.raises(CheckpointTaken, match="taken over by application local-17"):
        commit("first", 5)
    commit("second", 6)
    commit("first", 7)  # Spark has failed the second one at this batch, which the first one planned
    with pytest.raises(CheckpointTaken):
        commit("second", 7)
    commit("third", 7)
    commit("third", 8)
    with pytest.raises(CheckpointTaken):
        commit("first", 7)
    check_claim(store, NAMED, StreamRun("other", "first", 1))


def test_spark_24_a_claim_that_has_no_batch_counts_as_any_later_one() -> None:
    store = MemoryStore()
    check_claim(store, NAMED, StreamRun("q", "first", 4))
    CheckpointClaims(store, NAMED).check(StreamOffset(warehouse="w", stream="query-q", topics={}))
    with pytest.raises(CheckpointTaken):
        check_claim(store, NAMED, StreamRun("q", "first", 5))


def test_spark_25_claims_of_streams_that_are_gone_go_and_a_run_that_goes_on_makes_its_own_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, month = MemoryStore(), 30 * 86_400_000
    running = CheckpointClaims(store, NAMED)
    running.check(AT)
    check_claim(store, NAMED, StreamRun("new", "run", 1))
    times = {"s": 0, "query-new": 2}
    monkeypatch.setattr(store, "entries", lambda folder: [ListedFile("f", 1, times[folder.rpartition("/")[2]])])
    forget_claims(store, month)
    assert store.folders("jobs/streams") == ["query-new", "s"]
    forget_claims(store, month + 1)
    assert store.folders("jobs/streams") == ["query-new"]
    monkeypatch.undo()
    running.check(AT)
    assert len(store.names("jobs/streams/s")) == 1
    CheckpointClaims(store, NAMED).check(AT)
    with pytest.raises(CheckpointTaken):
        running.check(AT)
