"""RETRY-3: every dead letter that is sent back is one request, the same in every copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.limits import PRODUCER_ID_LENGTH_MAX, PRODUCER_REQUESTS_KEPT
from deltamq.mq.queue.dead_letters import Replay

replays = st.builds(
    Replay,
    st.sampled_from(["a", "b", "x" * 127]),
    st.integers(1, 3),
    st.sampled_from(["d@a", "d@b"]),
    st.integers(0, 99),
)


@given(replays, replays)
def test_retry_03_each_dead_letter_is_one_request(one: Replay, other: Replay) -> None:
    same = (one.producer_id, one.producer_seq) == (other.producer_id, other.producer_seq)
    assert same == (one == other)
    assert 0 <= one.producer_seq < PRODUCER_REQUESTS_KEPT and len(one.producer_id) <= PRODUCER_ID_LENGTH_MAX


@given(st.integers(0, 10_000))
def test_retry_03_a_partition_remembers_all_requests_of_one_of_its_producers(offset: int) -> None:
    producer = Replay("g", 1, "d@a", offset).producer_id
    first = offset - offset % PRODUCER_REQUESTS_KEPT
    sharing = [at for at in range(max(0, first - 40), first + 60) if Replay("g", 1, "d@a", at).producer_id == producer]
    assert sharing == list(range(first, first + PRODUCER_REQUESTS_KEPT))
