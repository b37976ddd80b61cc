"""SEND-5: a request of an idempotent producer is stored once, whatever is repeated, killed or raced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from deltamq.api.host.producers import ProducerGate, draw_of
from deltamq.api.log.partition import Partition
from deltamq.mq.errors import Conflict, StorageFull
from deltamq.mq.limits import PRODUCER_REQUESTS_KEPT
from deltamq.mq.wire.produce import Producer
from deltamq.tables.log.log import PartitionLog
from tests.api.running import ARROW, NDJSON, Api, Reply, arrow_stream, config_for, running

pytestmark = pytest.mark.static_too

KEYED = [{"key": f"k{i}", "body": str(i)} for i in range(40)]


def _send(api: Api, topic: str, seq: int, *messages: dict[str, object] | str, producer: str = "p") -> Reply:
    return api.send(topic, *messages, producer={"id": producer, "seq": seq})


@pytest.mark.promise("ONCE-1")
def test_send_05_a_replay_is_stored_once_and_gets_its_original_ranges(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    first = _send(api, topic, 0, *KEYED)
    again = _send(api, topic, 0, *KEYED)
    assert first.json["duplicate"] is False and again.json["duplicate"] is True
    assert _places(again) == _places(first) and len(first.json["ranges"]) == 4
    assert sum(api.stored(topic).values()) == 40


def _places(reply: Reply) -> list[object]:
    return sorted((r["partition"], r["base_offset"], r["count"], r.get("indexes")) for r in reply.json["ranges"])


def test_send_05_a_replay_without_keys_goes_where_it_went(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=8)
    for seq in range(10):
        assert _places(_send(api, topic, seq, "a", "b")) == _places(_send(api, topic, seq, "a", "b"))
    assert sum(api.stored(topic).values()) == 20


@pytest.mark.parametrize(
    ("kind", "body"), [(NDJSON, b'{"body": "a"}\n{"body": "b"}'), (ARROW, arrow_stream(body=[b"a", b"b"]))]
)
def test_send_05_headers_name_the_producer_of_ndjson_and_arrow(api: Api, topic: str, kind: str, body: bytes) -> None:
    topic += kind.replace("/", ".")
    for duplicate in (False, True):
        reply = api.produce(topic, body, kind, Producer_Id="p", Producer_Seq="3")
        assert reply.json["duplicate"] is duplicate
    assert sum(api.stored(topic).values()) == 2


def test_send_05_message_ids_of_a_replay_are_the_original_ones(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    producer = {"id": "p", "seq": 0}
    first = api.send(topic, *KEYED, query="?ids=true", producer=producer)
    again = api.send(topic, *KEYED, query="?ids=true", producer=producer)
    assert first.json["message_ids"] == again.json["message_ids"] and len(set(again.json["message_ids"])) == 40


def test_send_05_a_sequence_that_is_too_old_is_out_of_order(api: Api, topic: str) -> None:
    for seq in range(5, 5 + PRODUCER_REQUESTS_KEPT + 2):
        assert _send(api, topic, seq, "a").status == 200
    refused = _send(api, topic, 3, "late")
    problem = refused.json
    assert (refused.status, problem["code"], problem["field"]) == (
        409,
        "producer_sequence_out_of_order",
        "producer.seq",
    )
    assert problem["last_seq"] == 5 + PRODUCER_REQUESTS_KEPT + 1
    assert sum(api.stored(topic).values()) == PRODUCER_REQUESTS_KEPT + 2


def test_send_05_sequences_may_jump_upwards_and_each_producer_counts_alone(api: Api, topic: str) -> None:
    assert _send(api, topic, 7, "a").status == 200
    assert _send(api, topic, 900, "b").status == 200
    assert _send(api, topic, 0, "c", producer="q").status == 200
    assert _send(api, topic, 8, "late").status == 409


def test_send_05_a_sequence_reused_for_another_request_is_refused(api: Api, topic: str) -> None:
    _send(api, topic, 0, "a", "b")
    refused = _send(api, topic, 0, "a")
    assert (refused.status, refused.json["code"], refused.json["field"]) == (
        409,
        "producer_sequence_reused",
        "producer.seq",
    )
    assert sum(api.stored(topic).values()) == 2


def test_send_05_copies_of_one_request_at_the_same_time_are_stored_once(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    copies = 8
    for seq in range(5):
        start = threading.Barrier(copies)

        def copy(start: threading.Barrier = start, seq: int = seq) -> Reply:
            start.wait()
            return _send(api, topic, seq, *KEYED)

        with ThreadPoolExecutor(copies) as threads:
            replies = list(threads.map(lambda run: run(), [copy] * copies))
        assert [r.status for r in replies] == [200] * copies
        assert sorted(r.json["duplicate"] for r in replies) == [False] + [True] * (copies - 1)
        assert len({str(_places(r)) for r in replies}) == 1
    assert sum(api.stored(topic).values()) == 5 * 40


@pytest.mark.promise("ONCE-2")
def test_send_05_a_replay_after_a_restart_is_stored_once(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=4)
        first = _send(api, "orders", 0, *KEYED)
        last = _send(api, "orders", 1, "x")
    with running(config) as api:
        again = _send(api, "orders", 0, *KEYED)
        assert again.json["duplicate"] is True and _places(again) == _places(first)
        assert _places(_send(api, "orders", 1, "x")) == _places(last)
        assert _send(api, "orders", 2, "y").json["duplicate"] is False
        assert sum(api.stored("orders").values()) == 42


@pytest.mark.promise("ONCE-3")
def test_send_05_a_replay_stores_only_the_parts_that_are_missing(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    broken = _partition(api, topic, f"{topic}@broker-b")
    with _failing(broken):
        torn = _send(api, topic, 0, *KEYED)
    assert torn.status == 507 and torn.headers["retry-after"]
    before = api.stored(topic)
    assert before[f"{topic}@broker-b"] == 0 and before[f"{topic}@broker-a"] > 0
    again = _send(api, topic, 0, *KEYED)
    assert again.json["duplicate"] is True
    assert {r["partition"]: r.get("duplicate") for r in again.json["ranges"]} == {
        f"{topic}@broker-a": True,
        f"{topic}@broker-b": None,
    }
    assert sorted(i for r in again.json["ranges"] for i in r["indexes"]) == list(range(40))
    found = api.bodies(topic)
    assert sorted(int(b) for bodies in found.values() for b in bodies) == list(range(40))
    assert _places(_send(api, topic, 0, *KEYED)) == _places(again)


def test_send_05_the_rest_of_a_replay_without_keys_is_stored_wherever_it_goes(api: Api, topic: str) -> None:
    """Half of a request without keys may be drawn to the partition that has its other half."""
    api.put_topic(topic, partitions=2)
    lines = b"".join(b'{"body":"%d"}\n' % number for number in range(9_000))
    for seq in range(4):
        headers = {"producer_id": "p", "producer_seq": str(seq)}
        with _failing(_partition(api, topic, f"{topic}@broker-a")):
            assert api.produce(topic, lines, NDJSON, **headers).status == 507
        again = api.produce(topic, lines, NDJSON, **headers)
        assert sorted(i for found in again.json["ranges"] for i in found["indexes"]) == list(range(9_000))
        assert _places(api.produce(topic, lines, NDJSON, **headers)) == _places(again)
    found = [int(body) for bodies in api.bodies(topic).values() for body in bodies]
    assert sorted(found) == sorted(4 * list(range(9_000)))


def test_send_05_a_replay_after_an_expansion_finds_its_parts(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    first = _send(api, topic, 0, *KEYED)
    api.put_topic(topic, partitions=4)
    assert _places(_send(api, topic, 0, *KEYED)) == _places(first)
    assert sum(api.stored(topic).values()) == 40


def test_send_05_after_a_failure_the_same_sequence_may_come_again(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    with _failing(_partition(api, topic, f"{topic}@broker-a")):
        assert _send(api, topic, 0, "a").status == 507
    assert _send(api, topic, 0, "a").json["duplicate"] is False
    assert api.stored(topic) == {f"{topic}@broker-a": 1}


class _FullLog:
    """A log whose disk is full."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_in_turn(self, *_: object, **__: object) -> NoReturn:
        raise StorageFull


@contextmanager
def _failing(partition: Partition) -> Iterator[None]:
    """Inside, the partition's appends fail as on a full disk."""
    log = partition.open()
    partition.log = cast(PartitionLog, _FullLog(log))
    try:
        yield
    finally:
        partition.log = log


def _partition(api: Api, topic: str, name: str) -> Partition:
    return api.hosted(topic, name)


# The gate alone -----------------------------------------------------------------------------------------------


def test_a_keyless_replay_draws_the_same_place() -> None:
    assert draw_of(Producer("p", 7)) == draw_of(Producer("p", 7))
    draws = {draw_of(Producer("p", seq)) % 1024 for seq in range(2_000)}
    assert len(draws) > 800, "sequences spread over the logical partitions"


def test_a_lower_sequence_is_refused_while_a_higher_one_is_under_way() -> None:
    gate = ProducerGate()
    with gate.claim(Producer("p", 6)):
        assert gate.stored_parts(Producer("p", 7), {}) == {}
        assert gate.stored_parts(Producer("q", 5), {}) == {}
        with pytest.raises(Conflict, match="6 was seen"):
            gate.stored_parts(Producer("p", 5), {})
    assert gate.stored_parts(Producer("p", 5), {}) == {}
