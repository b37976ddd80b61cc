"""How fast the in-memory match and the handles are, alone (run it with `-m bench -s`).

The floors are far below what a quiet machine does: they only catch a step that came to depend on what is in flight.
"""

from __future__ import annotations

import time
import tracemalloc

import pytest

from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import LaneKey, Pop, spans_of
from deltamq.mq.queue.handle import HandleKeys, mint, open_handles
from deltamq.mq.queue.lane import BufferSettings
from deltamq.mq.queue.progress import Committed

KEY = LaneKey("topic-1", "billing", False, "orders@broker-a")
KEYS = HandleKeys(current=1, secrets={1: b"s" * 32})
NOW = 1_700_000_000_000

pytestmark = pytest.mark.bench


def pop_at(now_ms: int) -> Pop:
    return Pop(
        topic="orders",
        topic_id=KEY.topic_id,
        group=KEY.group,
        epoch=1,
        partition=KEY.partition,
        pop_time_ms=now_ms,
        invisible_ms=60_000,
        revive_queue=0,
    )


def cycle(batch: int, pops: int, *, handles: bool) -> float:
    """Pop and acknowledge batches through the memory; messages per second."""
    buffer = Buffer()
    lane = buffer.open_lane(KEY, Committed(1, 0), tenure=1, now_ms=NOW)
    began = time.perf_counter()
    for number in range(pops):
        now_ms = NOW + number
        pop = pop_at(now_ms)
        start, _ = buffer.next_read(lane)
        spans = spans_of(range(start, start + batch))
        assert not buffer.hold(lane, pop, spans, start + batch, now_ms)
        if handles:
            opened, invalid = open_handles(KEYS, KEY.group, mint(KEYS, pop, spans, tenure=1))
            assert not invalid
            for lease, bits, _ in opened:
                buffer.ack(lane, lease.span.start_offset, lease.pop_time_ms, bits, now_ms, tenure=lease.tenure)
        else:
            for span in spans:
                buffer.ack(lane, span.start_offset, now_ms, span.full, now_ms, tenure=1)
        if number % 16 == 0:
            buffer.tick(now_ms)
            buffer.commits()
    took_s = time.perf_counter() - began
    assert lane.committed == batch * pops and len(buffer) == 0
    return batch * pops / took_s


@pytest.mark.parametrize("batch", [1, 32, 500, 1_024])
def test_pop_13_speed_through_memory(batch: int) -> None:
    pops = 20_000 if batch <= 32 else 2_000
    bare = max(cycle(batch, pops, handles=False) for _ in range(3))
    whole = max(cycle(batch, pops, handles=True) for _ in range(3))
    checkpoints = -(-batch // 32) / batch
    print(
        f"\nbatch {batch:5}: {bare:12,.0f} msg/s = {bare * checkpoints:9,.0f} checkpoints popped and acked a second; "
        f"with handles made and verified {whole:11,.0f} msg/s"
    )
    assert whole > 10_000


def stored(buffer: Buffer, batch: int, pops: int, now_ms: int) -> None:
    """Pop batches of which every checkpoint is stored."""
    lane = buffer.lane(KEY)
    assert lane is not None
    for _ in range(pops):
        start, _ = buffer.next_read(lane)
        for decision in buffer.hold(lane, pop_at(now_ms), spans_of(range(start, start + batch)), start + batch, now_ms):
            buffer.stored(decision)


@pytest.mark.parametrize(("batch", "in_flight"), [(32, 320_000), (32, 1_000_000), (1, 1_000_000)])
def test_pop_13_speed_through_the_log_is_flat(batch: int, in_flight: int) -> None:
    """Everything is stored: what a batch costs in memory, whatever is in flight."""
    buffer = Buffer(BufferSettings(enabled=False))
    lane = buffer.open_lane(KEY, Committed(1, 0), tenure=1, now_ms=NOW)
    stored(buffer, batch, in_flight // batch, NOW)
    pops = 10_000
    began = time.perf_counter()
    for number in range(pops):
        stored(buffer, batch, 1, NOW + 1)
        result = buffer.ack(lane, number * batch, NOW, (1 << batch) - 1, NOW + 1, tenure=1)
        assert result.held is not None
        buffer.ack_stored(result.held, result.store, NOW + 1)
    rate = pops / (time.perf_counter() - began)
    print(
        f"\nbatch {batch:3}, {in_flight:9,} in flight: {rate:9,.0f} checkpoints stored and acked a second "
        f"= {rate * batch:11,.0f} msg/s"
    )
    assert rate > 3_000


def test_pop_13_memory_of_a_stored_checkpoint() -> None:
    buffer = Buffer(BufferSettings(enabled=False))
    buffer.open_lane(KEY, Committed(1, 0), tenure=1, now_ms=NOW)
    tracemalloc.start()
    stored(buffer, 32, 10_000, NOW)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\n{held_bytes / 10_000:.0f} bytes for each stored checkpoint that is in flight")
    assert held_bytes / 10_000 < 2_000
