"""Hypothesis strategies for checkpoints and their keys, shared by the tests of the queue."""

from __future__ import annotations

from hypothesis import strategies as st

from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, Pop, Replaced, Span, spans_of

NAMES = st.sampled_from(["t", "t1", "a_b", "b", "a"])
PARTITIONS = st.sampled_from(["2@b", "12@b", "2@c", "orders#1@broker-a"])
TIMES = st.integers(0, 2**41)

keys = st.builds(
    CheckpointKey, NAMES, NAMES, st.integers(0, 9), st.booleans(), PARTITIONS, st.integers(0, 2**40), TIMES
)
pops = st.builds(
    Pop,
    topic=NAMES,
    topic_id=NAMES,
    group=NAMES,
    epoch=st.integers(0, 9),
    partition=PARTITIONS,
    retry=st.booleans(),
    pop_time_ms=TIMES,
    invisible_ms=st.integers(0, 2**31),
    revive_queue=st.sampled_from([0, 7, 999]),
    given_back=st.booleans(),
)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    """Draw a span of contiguous or filtered offsets, with one number of attempts for all or one for each."""
    offsets = sorted(draw(st.lists(st.integers(0, 2**36), min_size=1, max_size=32, unique=True)))
    if draw(st.booleans()):
        offsets = list(range(offsets[0], offsets[0] + len(offsets)))
    each = draw(st.lists(st.integers(1, 20), min_size=len(offsets), max_size=len(offsets)))
    attempts: list[int | tuple[int, ...]] = [1, 3, tuple(each)]
    return spans_of(offsets, draw(st.sampled_from(attempts)))[0]


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    """Draw any checkpoint that the log can hold."""
    span = draw(spans())
    return Checkpoint(
        pop=draw(pops),
        span=span,
        bit_map=draw(st.integers(0, span.full)),
        replaces=draw(st.none() | st.builds(Replaced, keys, st.integers(1, 2**32 - 1))),
        dead_reason=draw(st.none() | st.just("bad")),
    )
