"""Reading ahead for Kafka's consumers: they get what a read would give them, sooner (SPEC KAFKA-3)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Iterator

import pytest

from deltamq.api.kafka.calls.read_ahead import Chunk, Position, Read, ReadAhead
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import FetchedPartition, FetchPartition, FetchRequest, FetchTopic
from deltamq.api.kafka.records.batch import batches_of
from deltamq.api.kafka.records.decode import decode_batches
from deltamq.api.wire.request import Ticket
from deltamq.mq.errors import Unavailable
from deltamq.mq.limits import MIB
from deltamq.tables.log.fetch import FetchStatus
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until
from tests.api.static_calls import StaticTopic

CHUNK = 32 * 1024
CHUNKS = 6
#: Of 100 bytes and what a row takes besides, in one chunk.
IN_CHUNK = CHUNK // 164
MESSAGES = CHUNKS * IN_CHUNK
HERE = Position("t", 0, 100)


def _bodies(name: str, count: int) -> list[str]:
    return [f"{name} {i:05}".ljust(100, ".") for i in range(count)]


def _fetch(client: RawClient, topic: str, offset: int, bytes_max: int = CHUNK) -> FetchedPartition:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=[FetchTopic(name=topic, partitions=[wanted])]
    )
    found: FetchedPartition = client.ask(request).topics[0].partitions[0]
    return found


def _values(found: FetchedPartition) -> list[str]:
    batches = list(batches_of(bytes(found.records or b"")))
    return [value.decode() for value in decode_batches(batches).value.to_pylist()] if batches else []


def _read_on(client: RawClient, topic: str, offset: int = 0) -> Iterator[list[str]]:
    """Fetch one chunk after the other up to the end."""
    while values := _values(found := _fetch(client, topic, offset)):
        yield values
        offset += len(values)
        assert offset <= found.high_watermark


def _read_two(client: RawClient, topic: str) -> int:
    """Fetch two chunks, so that the third is read ahead; return where it begins."""
    return sum(map(len, itertools.islice(_read_on(client, topic), 2)))


def _ahead(kafka: KafkaApi) -> int:
    """How many messages that were read ahead were given."""
    return _metric(kafka, "deltamq_kafka_read_ahead_total")


def _reserved(kafka: KafkaApi) -> int:
    return _metric(kafka, "deltamq_kafka_read_ahead_bytes")


def _metric(kafka: KafkaApi, name: str) -> int:
    found = re.search(rf"^{name} (\S+)$", kafka.api.call("GET", "/metrics").body.decode(), re.M)
    assert found is not None
    return int(float(found[1]))


def test_kafka_03_a_consumer_that_reads_on_is_read_ahead_for(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    bodies = _bodies("m", MESSAGES)
    assert kafka.api.send(topic, *bodies).status == 200
    before = _ahead(kafka)
    with RawClient(kafka.port) as client:
        chunks = list(_read_on(client, topic))
    assert [value for chunk in chunks for value in chunk] == bodies
    # The first two chunks are read when they are asked for, and the last one, which is not full.
    assert _ahead(kafka) - before >= sum(map(len, chunks[2:-1])) > 0
    until(lambda: not _reserved(kafka))


def test_kafka_03_a_client_that_comes_once_is_not_read_ahead_for(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    assert kafka.api.send(topic, *_bodies("m", MESSAGES)).status == 200
    with RawClient(kafka.port) as client:
        for offset in (0, 2 * IN_CHUNK, 10):
            assert _values(_fetch(client, topic, offset))
            assert not _reserved(kafka)


def test_kafka_03_what_comes_after_it_was_read_ahead_is_told_and_given(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    bodies = _bodies("before", MESSAGES)
    assert kafka.api.send(topic, *bodies).status == 200
    with RawClient(kafka.port) as client:
        first = _values(_fetch(client, topic, 0))
        second = _values(_fetch(client, topic, len(first)))
        until(lambda: _reserved(kafka))  # what follows is read ahead
        more = _bodies("after", 10)
        assert kafka.api.send(topic, *more).status == 200
        at = len(first) + len(second)
        before = _ahead(kafka)
        third = _fetch(client, topic, at)
        assert _ahead(kafka) > before
        assert third.high_watermark == MESSAGES + len(more)
        values = _values(third)
        rest = [value for chunk in _read_on(client, topic, at + len(values)) for value in chunk]
    assert [*first, *second, *values, *rest] == [*bodies, *more]


def test_kafka_03_a_smaller_fetch_gets_no_more_than_it_asked_for(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    assert kafka.api.send(topic, *_bodies("m", MESSAGES)).status == 200
    with RawClient(kafka.port) as client:
        at = _read_two(client, topic)
        assert 0 < len(_values(_fetch(client, topic, at, CHUNK // 4))) <= IN_CHUNK // 2
        assert _reserved(kafka) <= CHUNK, "what was too large is read ahead once, and not after every such fetch"


def test_kafka_03_nothing_is_given_of_a_topic_that_was_deleted_and_made_again(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    assert kafka.api.send(topic, *_bodies("old", MESSAGES)).status == 200
    with RawClient(kafka.port) as client:
        at = _read_two(client, topic)
        assert kafka.api.call("DELETE", f"/v1/topics/{topic}").status == 204
        assert _fetch(client, topic, at).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        kafka.api.put_topic(topic, partitions=1)
        new = _bodies("new", MESSAGES)
        assert kafka.api.send(topic, *new).status == 200
        values = _values(_fetch(client, topic, at))
        assert values == new[at : at + len(values)] != []


def test_kafka_10_what_was_read_ahead_is_not_given_once_its_queue_has_moved(tmp_path, topic) -> None:
    with kafka_running(tmp_path, brokers=("broker-a", "broker-b")) as kafka:
        static = StaticTopic(kafka.api, topic)
        assert static.put(1, brokers=["broker-a"]).status == 201
        bodies = _bodies("m", MESSAGES)
        static.send_to(0, *bodies)
        found: list[str] = []
        with RawClient(kafka.port) as client:
            for count, values in enumerate(_read_on(client, topic)):
                found += values
                if count == 2:
                    assert _ahead(kafka), "logical queues are read ahead, too"
                    assert static.remapped("broker-b")
                    static.send_to(0, "behind the remapping")
        assert found == [*bodies, "behind the remapping"]


def test_kafka_03_a_fetch_for_which_there_is_no_room_is_tried_again(tmp_path, topic) -> None:
    limit = 64 * MIB  # the least that may be set
    with kafka_running(tmp_path, answer_bytes_max=limit) as kafka, RawClient(kafka.port) as client:
        kafka.api.put_topic(topic, partitions=1)
        assert kafka.api.send(topic, "m").status == 200
        answers = kafka.api.service.answers
        answers.reserve(limit)
        found = _fetch(client, topic, 0)
        # Java's consumers take REQUEST_TIMED_OUT, which producers are told, for a fault of their own, and fail.
        assert (found.error_code, bytes(found.records)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        answers.bytes -= limit
        assert _values(_fetch(client, topic, 0)) == ["m"]


# Without a service.


def _chunk(name: bytes) -> Chunk:
    return Chunk(FetchStatus.FOUND, name, 1, HERE.offset + 1, 0, 1_000, None)


def _reads(name: bytes, begun: list[bytes]) -> Read:
    async def read(_: Ticket) -> Chunk:
        begun.append(name)
        await asyncio.sleep(0)
        return _chunk(name)

    return read


def test_kafka_03_what_was_read_ahead_is_given_once() -> None:
    async def run() -> None:
        ahead, begun = ReadAhead(), list[bytes]()
        ahead.expect(HERE, 10, _reads(b"one", begun))
        ahead.expect(HERE, 10, _reads(b"again", begun))  # another client that is at the same place
        assert HERE in ahead and ahead.bytes == 10
        assert await ahead.take(HERE, 9) is None, "it may be too large"
        assert await ahead.take(HERE, 10) == _chunk(b"one")
        assert await ahead.take(HERE, 10) is None and HERE not in ahead
        await asyncio.sleep(0)
        assert begun == [b"one"] and ahead.bytes == 0

    asyncio.run(run())


def test_kafka_03_what_nobody_asks_for_is_dropped() -> None:
    async def run() -> None:
        ahead = ReadAhead()
        ahead.expect(HERE, MIB, _reads(b"one", []))
        ahead.expect(HERE._replace(offset=200), MIB, None)
        async with asyncio.timeout(30):
            while ahead.bytes:
                await asyncio.sleep(0.01)
        assert HERE not in ahead and await ahead.take(HERE, MIB) is None

    asyncio.run(run())


def test_kafka_03_no_more_is_read_ahead_than_there_is_room_for() -> None:
    async def run() -> None:
        ahead, begun = ReadAhead(), list[bytes]()
        positions = [HERE._replace(offset=at) for at in range(100)]
        for at, position in enumerate(positions):
            ahead.expect(position, MIB, _reads(b"%d" % at, begun))
        assert ahead.bytes == 64 * MIB
        found = [await ahead.take(position, MIB) for position in positions]
        await asyncio.sleep(0)
        assert [chunk is not None for chunk in found] == [at < 64 for at in range(100)]
        assert ahead.bytes == 0 and len(begun) == ahead.taken == 64

    asyncio.run(run())


@pytest.mark.parametrize("error", [Unavailable("the store is away"), ValueError("a fault of ours")])
def test_kafka_03_a_read_that_fails_is_left_to_the_client(error, caplog) -> None:
    async def read(_: Ticket) -> Chunk:
        raise error

    async def run() -> None:
        ahead = ReadAhead()
        ahead.expect(HERE, 10, read)
        assert await ahead.take(HERE, 10) is None
        await asyncio.sleep(0)
        assert ahead.bytes == 0

    asyncio.run(run())
    assert ("event=kafka_read_ahead_failed" in caplog.text) == isinstance(error, ValueError)


def test_kafka_03_nothing_is_read_ahead_once_the_service_stops() -> None:
    async def run() -> None:
        ahead = ReadAhead()
        never = asyncio.Event()

        async def read(_: Ticket) -> Chunk:
            await never.wait()
            return _chunk(b"")

        ahead.expect(HERE, 10, read)
        await asyncio.sleep(0)
        ahead.end()
        ahead.expect(HERE, 10, read)
        assert HERE not in ahead
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        assert ahead.bytes == 0 and len(asyncio.all_tasks()) == 1

    asyncio.run(run())


async def _waiting_client() -> tuple[ReadAhead, asyncio.Future[Chunk | None], asyncio.Event]:
    """A client that waits for what is read ahead for it, which goes on when the event is set."""
    ahead, goes_on = ReadAhead(), asyncio.Event()

    async def read(_: Ticket) -> Chunk:
        await goes_on.wait()
        return _chunk(b"late")

    ahead.expect(HERE, 10, read)
    client = asyncio.ensure_future(ahead.take(HERE, 10))
    await asyncio.sleep(0)
    return ahead, client, goes_on


@pytest.mark.parametrize("leaves", [False, True])
def test_kafka_03_a_client_that_waits_when_the_service_stops_reads_by_itself(leaves) -> None:
    async def run() -> None:
        ahead, client, _ = await _waiting_client()
        ahead.end()
        if leaves:
            client.cancel()
            with pytest.raises(asyncio.CancelledError):
                await client
        else:
            assert await client is None
        await asyncio.sleep(0)
        assert ahead.bytes == 0

    asyncio.run(run())


def test_kafka_03_a_client_that_leaves_while_it_waits_takes_nothing_away() -> None:
    async def run() -> None:
        ahead, client, goes_on = await _waiting_client()
        client.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client
        assert ahead.bytes == 10, "it is still read"
        goes_on.set()
        async with asyncio.timeout(30):
            while ahead.bytes:
                await asyncio.sleep(0)

    asyncio.run(run())
