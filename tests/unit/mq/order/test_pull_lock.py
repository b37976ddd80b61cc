"""Pull locks: taking, renewing, expiry, handover, and what a crash of the broker leaves (SPEC ORDER-4, ORDER-5)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from deltamq.mq.errors import Conflict
from deltamq.mq.limits import PULL_LOCK_LOST_MS, PULL_LOCK_MS, PULL_LOCK_RENEW_MS, PULL_LOCK_SETTLE_MS
from deltamq.mq.meta.online import OnlineClient, Seat
from deltamq.mq.order.pull_lock import ClientLock, PullLocks
from deltamq.mq.queue.checkpoint import LaneKey

LANE = LaneKey("id-1", "billing", False, "orders@A")
OTHER = LaneKey("id-1", "billing", False, "orders@B")
BOTH = {"a": 1, "b": 2}


def seat(owner: str | None, *earlier: str, joined: Mapping[str, int] = BOTH) -> Seat:
    clients = {
        client: OnlineClient(id=client, joined=number, topics={}, leaving=False, since_ms=0)
        for client, number in joined.items()
    }
    return Seat(owner, clients, frozenset(earlier), 7)


A, B = seat("a"), seat("b", "a")


@pytest.fixture
def locks() -> PullLocks:
    """Locks of a broker that was taken long ago."""
    return PullLocks(-PULL_LOCK_SETTLE_MS, epoch=3, online_epoch=2)


def refused(code: str, locks: PullLocks, client: str, where: Seat, now_ms: int) -> None:
    for call in (locks.pull, locks.check_commit):
        with pytest.raises(Conflict) as error:
            call(LANE, client, where, now_ms)
        assert (error.value.code, error.value.status) == (code, 409)


def test_order_04_only_the_holder_pulls_and_commits(locks: PullLocks) -> None:
    refused("not_lock_holder", locks, "a", A, 0)
    number = locks.take(LANE, "a", A, 0)
    assert number is not None and number >> 32 == 3
    locks.pull(LANE, "a", A, 1)
    locks.check_commit(LANE, "a", A, 1, number=number)
    refused("not_lock_holder", locks, "b", A, 1)
    assert locks.take(LANE, "b", A, 1) is None
    assert locks.take(OTHER, "b", seat("b"), 1) not in (None, number), "another partition is another lock"
    with pytest.raises(Conflict):
        locks.check_commit(LANE, "a", A, 1, number=number - 1)


def test_order_05_who_has_said_that_it_goes_keeps_what_it_finishes_and_gets_no_lock(locks: PullLocks) -> None:
    number = locks.take(LANE, "a", A, 0)
    left = Seat("a", {**A.clients, "a": replace(A.clients["a"], leaving=True)}, A.earlier, A.epoch)
    assert locks.take(LANE, "a", left, 1) is None and locks.take(OTHER, "a", left, 1) is None
    assert locks.take(LANE, "a", left, 1, held=True) == number, "a listener that runs ends first"
    locks.check_commit(LANE, "a", left, 2, number=number)
    assert locks.release(LANE, "a", number=number)
    assert locks.take(LANE, "a", left, 3) is None and locks.take(LANE, "a", left, 3, held=True) is None


def test_order_04_pulls_and_renewals_keep_the_lock_and_commits_do_not(locks: PullLocks) -> None:
    number = locks.take(LANE, "a", A, 0)
    locks.pull(LANE, "a", A, PULL_LOCK_MS - 1)
    assert locks.take(LANE, "a", A, 2 * PULL_LOCK_MS - 2, held=True) == number
    last = 3 * PULL_LOCK_MS - 3
    locks.check_commit(LANE, "a", A, last)
    refused("not_lock_holder", locks, "a", A, last + 1)
    assert locks.take(LANE, "a", A, last + 1) not in (None, number), "it is another lock now"


def test_order_04_a_lock_that_is_not_renewed_for_60_s_is_free(locks: PullLocks) -> None:
    locks.take(LANE, "a", A, 0)
    assert locks.take(LANE, "b", B, PULL_LOCK_MS - 1) is None
    locks.sweep(PULL_LOCK_MS - 1)
    assert locks.take(LANE, "b", B, PULL_LOCK_MS - 1) is None
    assert locks.take(LANE, "b", B, PULL_LOCK_MS) is not None
    refused("not_lock_holder", locks, "a", B, PULL_LOCK_MS)


def test_order_04_only_the_holder_releases(locks: PullLocks) -> None:
    locks.take(LANE, "a", A, 0)
    assert not locks.release(LANE, "b")
    assert locks.take(LANE, "b", B, 1) is None
    assert locks.release(LANE, "a") and not locks.release(LANE, "a")
    assert locks.take(LANE, "b", B, 1) is not None


def test_order_04_a_release_that_comes_late_does_not_free_the_next_lock(locks: PullLocks) -> None:
    first = locks.take(LANE, "a", A, 0)
    assert locks.release(LANE, "a", number=first)
    second = locks.take(LANE, "a", A, 1)
    assert not locks.release(LANE, "a", number=first)
    locks.check_commit(LANE, "a", A, 1, number=second)


def test_order_04_who_asks_anew_voids_what_it_sent_before(locks: PullLocks) -> None:
    first = locks.take(LANE, "a", A, 0)
    second = locks.take(LANE, "a", A, 1)
    assert first is not None and second is not None and second > first
    with pytest.raises(Conflict):
        locks.check_commit(LANE, "a", A, 1, number=first)
    assert not locks.release(LANE, "a", number=first)
    locks.check_commit(LANE, "a", A, 1, number=second)


def test_order_04_a_renewal_that_comes_after_the_release_takes_nothing(locks: PullLocks) -> None:
    locks.take(LANE, "a", A, 0)
    locks.release(LANE, "a")
    assert locks.take(LANE, "a", A, 1, held=True) is None
    assert locks.take(LANE, "a", A, 1) is not None


def test_order_05_only_the_owner_takes_and_who_hands_over_finishes_but_pulls_no_more(locks: PullLocks) -> None:
    number = locks.take(LANE, "a", A, 0)
    with pytest.raises(Conflict) as error:
        locks.pull(LANE, "a", B, 1)
    assert error.value.code == "partition_moved"
    locks.check_commit(LANE, "a", B, 1)
    assert locks.take(LANE, "a", B, 1, held=True) == number, "it renews while it finishes"
    assert locks.take(LANE, "b", B, 1) is None
    locks.release(LANE, "a")
    assert locks.take(LANE, "a", B, 2) is None, "it is not the owner any more"
    assert locks.take(LANE, "b", B, 2) is not None


def test_order_03_the_lock_of_a_client_that_is_gone_is_free_at_once(locks: PullLocks) -> None:
    locks.take(LANE, "a", A, 0)
    assert locks.take(LANE, "b", seat("b", joined={"b": 2}), 1) is not None


def test_order_03_a_client_that_came_back_does_not_have_what_it_held_before(locks: PullLocks) -> None:
    locks.take(LANE, "a", A, 0)
    back = seat("a", joined={"a": 9, "b": 2})
    refused("not_lock_holder", locks, "a", back, 1)
    assert locks.take(LANE, "a", back, 1) is not None


def test_order_04_nobody_who_is_not_online_takes_a_lock(locks: PullLocks) -> None:
    assert locks.take(LANE, "c", seat("c"), 0) is None


# A broker that was taken over at 0: it does not know who held what.


def test_order_04_after_a_takeover_the_owner_goes_on_where_nobody_else_can_hold_the_lock() -> None:
    locks = PullLocks(0, epoch=4, online_epoch=2)
    assert locks.take(LANE, "a", A, 0) is not None


def test_order_04_after_a_takeover_a_contested_partition_waits_until_the_holder_has_stopped() -> None:
    locks = PullLocks(0, epoch=4, online_epoch=2)
    assert locks.take(LANE, "b", B, PULL_LOCK_SETTLE_MS - 1) is None
    assert locks.take(LANE, "b", B, PULL_LOCK_SETTLE_MS) is not None
    assert PullLocks(0, epoch=4, online_epoch=2).take(LANE, "b", seat("b", joined={"b": 2}), 1) is not None, (
        "a is gone: no wait"
    )


def test_order_04_after_a_takeover_nobody_waits_for_who_joined_since() -> None:
    locks = PullLocks(0, epoch=4, online_epoch=0)
    assert locks.take(LANE, "b", B, 1) is not None


def test_order_04_after_a_takeover_the_holder_claims_its_lock_and_finishes() -> None:
    locks = PullLocks(0, epoch=4, online_epoch=2)
    number = locks.take(LANE, "a", B, 1, held=True)
    assert number is not None and number >> 32 == 4
    locks.check_commit(LANE, "a", B, 2, number=number)
    assert locks.take(LANE, "b", B, PULL_LOCK_SETTLE_MS) is None
    locks.release(LANE, "a")
    assert locks.take(LANE, "a", B, 3, held=True) is None, "it was given here: nobody holds it from before"
    assert locks.take(LANE, "b", B, 3) is not None


def test_order_04_a_claim_is_heard_from_those_who_had_the_partition_and_only_after_a_takeover() -> None:
    locks = PullLocks(0, epoch=4, online_epoch=2)
    assert locks.take(LANE, "b", A, 1, held=True) is None
    assert locks.take(LANE, "a", B, PULL_LOCK_SETTLE_MS, held=True) is None


# The client's side.


def test_order_04_a_client_counts_from_when_it_asked_and_a_lost_lock_stays_lost() -> None:
    lock = ClientLock(5, 0)
    assert (lock.is_due(PULL_LOCK_RENEW_MS - 1), lock.is_due(PULL_LOCK_RENEW_MS)) == (False, True)
    lock.renewed(6, 10_000, 12_000)
    lock.renewed(6, 9_000, 12_500)
    assert lock.number == 6
    assert lock.holds(10_000 + PULL_LOCK_LOST_MS - 1)
    late = 10_000 + PULL_LOCK_LOST_MS
    assert not lock.renewed(7, late - 5, late)
    assert not lock.holds(late) and not lock.holds(late - 1), "an answer that comes too late does not bring it back"


def test_order_10_a_lock_that_the_broker_refuses_is_lost() -> None:
    lock = ClientLock(5, 0)
    lock.lose()
    assert not lock.holds(0)


def test_order_04_who_has_a_lock_is_known(locks: PullLocks) -> None:
    assert not locks.has(LANE, "a", A, 0) and len(locks) == 0
    locks.take(LANE, "a", A, 0)
    assert locks.has(LANE, "a", A, 0) and locks.has(LANE, "a", B, 0), "also while it must hand over"
    assert not locks.has(LANE, "b", B, 0) and not locks.has(OTHER, "a", A, 0) and len(locks) == 1
    assert not locks.has(LANE, "a", seat("a", joined={"a": 9}), 0), "another stay has not what an earlier one had"
    assert not locks.has(LANE, "a", A, PULL_LOCK_MS)


def test_pop_18_a_void_lock_is_asked_for_anew(locks: PullLocks) -> None:
    number = locks.take(LANE, "a", A, 0)
    locks.void(LANE, 0)
    refused("not_lock_holder", locks, "a", A, 1)
    assert locks.take(LANE, "a", A, 1, held=True) is None, "it does not know where the group goes on"
    assert locks.take(LANE, "a", A, 1) not in (None, number)


def test_pop_18_a_void_lock_cannot_be_claimed_from_a_broker_that_was_taken_over() -> None:
    locks = PullLocks(0, epoch=3, online_epoch=2)
    locks.void(LANE, 0)
    assert locks.take(LANE, "a", B, 1, held=True) is None
    assert locks.take(LANE, "b", B, 1) is None, "but the client that had it may still be at work"
    assert locks.take(LANE, "b", B, PULL_LOCK_SETTLE_MS) is not None
    assert locks.take(OTHER, "a", B, 1, held=True) is not None


def test_what_a_takeover_left_is_remembered_no_longer_than_it_matters() -> None:
    locks = PullLocks(0, epoch=3, online_epoch=2)
    locks.take(LANE, "a", A, 0)
    locks.void(OTHER, 0)
    locks.sweep(PULL_LOCK_SETTLE_MS - 1)
    assert locks.take(OTHER, "b", seat("b"), PULL_LOCK_SETTLE_MS - 1, held=True) is None
    locks.sweep(PULL_LOCK_SETTLE_MS)
    assert not locks._given and not locks._void
    locks.void(OTHER, PULL_LOCK_SETTLE_MS)
    locks.take(LANE, "a", A, PULL_LOCK_SETTLE_MS)
    assert not locks._given and not locks._void


def test_order_08_a_lock_that_was_given_back_was_not_abandoned(locks: PullLocks) -> None:
    locks.take(LANE, "a", A, 0)
    assert not locks.is_abandoned(LANE)
    locks.take(LANE, "a", A, 1, held=True)
    assert not locks.is_abandoned(LANE), "it was renewed"
    locks.release(LANE, "a")
    locks.take(LANE, "a", A, 2)
    assert not locks.is_abandoned(LANE)


def test_order_08_who_goes_without_giving_its_lock_back_abandons_it(locks: PullLocks) -> None:
    locks.take(LANE, "a", A, 0)
    assert locks.take(LANE, "a", A, 1) is not None, "another process by the same name"
    assert locks.is_abandoned(LANE) and not locks.is_abandoned(OTHER)
    locks.counted(LANE)
    assert not locks.is_abandoned(LANE), "each end counts once"
    gone = seat("b", joined={"b": 2})
    assert locks.take(LANE, "b", gone, 2) is not None, "the stay of a is over"
    assert locks.is_abandoned(LANE)


def test_order_08_a_lock_that_ran_out_and_was_swept_is_abandoned(locks: PullLocks) -> None:
    locks.take(LANE, "a", A, 0)
    locks.sweep(PULL_LOCK_MS - 1)
    assert not locks.is_abandoned(LANE)
    locks.sweep(PULL_LOCK_MS)
    assert len(locks) == 0 and locks.is_abandoned(LANE)
    locks.void(LANE, PULL_LOCK_MS)
    assert not locks.is_abandoned(LANE), "the group goes on elsewhere"


def test_order_08_who_claims_its_lock_after_a_takeover_has_not_died() -> None:
    locks = PullLocks(0, epoch=4, online_epoch=2)
    assert locks.take(LANE, "a", A, 1, held=True) is not None
    assert not locks.is_abandoned(LANE)


# Logical queues that come to the broker (SPEC STATIC) -----------------------------------------------------------------

QUEUE = LaneKey("id-1", "billing", False, "0@__logical_queue_broker__")
LATE_MS = 10_000


def arrive(locks: PullLocks, now_ms: int = 0, online_epoch: int = 2) -> None:
    locks.arrive("id-1", QUEUE.partition, now_ms, online_epoch=online_epoch, late_ms=LATE_MS)


def test_order_04_who_holds_a_queue_that_moved_here_claims_it_and_goes_on(locks: PullLocks) -> None:
    arrive(locks)
    assert locks.take(QUEUE, "a", A, 1, held=True) is not None
    assert locks.take(LANE, "a", A, 1, held=True) is None, "of other partitions there are no claims"
    locks.pull(QUEUE, "a", A, 2)


def test_order_05_a_contested_queue_waits_for_who_may_hold_it_at_its_previous_broker(locks: PullLocks) -> None:
    arrive(locks)
    settled_ms = PULL_LOCK_SETTLE_MS + LATE_MS
    assert locks.take(QUEUE, "b", B, settled_ms - 1) is None, "its process may not know of the move yet"
    assert locks.take(LANE, "b", B, 1) is not None, "other partitions do not wait"
    assert locks.take(QUEUE, "b", B, settled_ms) is not None
    assert locks.take(QUEUE, "a", B, settled_ms, held=True) is None


def test_order_05_nobody_waits_for_a_client_that_joined_after_the_queue_moved(locks: PullLocks) -> None:
    arrive(locks, online_epoch=1)
    later = seat("b", "a", joined={"a": 2, "b": 1})
    assert locks.take(QUEUE, "b", later, 1) is not None


def test_order_05_a_queue_that_comes_back_has_none_of_its_earlier_locks(locks: PullLocks) -> None:
    number = locks.take(QUEUE, "a", A, 0)
    arrive(locks, 10)
    refusal = pytest.raises(Conflict, match="does not hold")
    with refusal:
        locks.check_commit(QUEUE, "a", A, 11, number=number)
    assert locks.take(QUEUE, "b", B, 12) is None, "the client may have it from the broker between"
    assert locks.take(QUEUE, "a", A, 12, held=True) not in (None, number)


def test_pop_18_a_reset_after_the_move_voids_claims_of_the_queue(locks: PullLocks) -> None:
    arrive(locks)
    locks.void(QUEUE, 1)
    assert locks.take(QUEUE, "a", A, 2, held=True) is None
    assert locks.take(QUEUE, "a", A, 2) is not None
    locks.sweep(PULL_LOCK_SETTLE_MS + LATE_MS)
    locks.pull(QUEUE, "a", A, PULL_LOCK_SETTLE_MS + LATE_MS)


# What the broker tells that a queue came from -------------------------------------------------------------------------


@pytest.fixture
def previous() -> PullLocks:
    """Locks of the broker from which the queue comes, whose clock shows much later times."""
    return PullLocks(0, epoch=9, online_epoch=2)


#: A time at the previous broker when its own takeover is long settled.
THERE = 1_000_000


def came(locks: PullLocks, previous: PullLocks, *, asked_ms: int = 0) -> None:
    """Let the queue come at 0, and the previous broker tell what it knows at `asked_ms`."""
    locks.arrive("id-1", QUEUE.partition, 0, online_epoch=2, late_ms=LATE_MS, previous="broker-b")
    assert locks.came_from(QUEUE, asked_ms) == "broker-b"
    locks.adopt(QUEUE, previous.account(QUEUE, THERE + asked_ms), asked_ms)


def test_order_05_a_lock_that_nobody_had_at_the_previous_broker_is_free_at_once(
    locks: PullLocks, previous: PullLocks
) -> None:
    previous.take(QUEUE, "a", A, THERE - 9)
    previous.release(QUEUE, "a")
    came(locks, previous)
    assert locks.take(QUEUE, "a", B, 0, held=True) is None, "it is known that nobody has it"
    assert locks.take(QUEUE, "b", B, 0) is not None


def test_order_05_who_had_the_lock_at_the_previous_broker_has_it_here(locks: PullLocks, previous: PullLocks) -> None:
    number = previous.take(QUEUE, "a", A, THERE - 5_000)
    came(locks, previous)
    assert locks.take(QUEUE, "b", B, 1) is None
    locks.check_commit(QUEUE, "a", B, 1, number=number)
    assert locks.take(QUEUE, "a", B, 2, held=True) == number, "it is the same lock"
    assert locks.take(QUEUE, "b", B, PULL_LOCK_MS + 1) is None
    assert locks.release(QUEUE, "a", number=number)
    assert locks.take(QUEUE, "b", B, PULL_LOCK_MS + 1) is not None
    assert not locks.is_abandoned(QUEUE)


@pytest.mark.parametrize(("ago_ms", "free_ms"), [(0, PULL_LOCK_SETTLE_MS), (PULL_LOCK_MS - 7, 7)])
def test_order_05_a_holder_that_does_not_renew_here_has_lost_it_when_it_must_think_so(
    locks: PullLocks, previous: PullLocks, ago_ms: int, free_ms: int
) -> None:
    previous.take(QUEUE, "a", A, THERE - ago_ms)
    came(locks, previous)
    assert locks.take(QUEUE, "b", B, free_ms - 1) is None
    assert locks.take(QUEUE, "b", B, free_ms) is not None and free_ms > PULL_LOCK_LOST_MS - ago_ms
    assert locks.is_abandoned(QUEUE), "it went without a release"


def test_order_05_what_was_decided_here_meanwhile_stands(locks: PullLocks, previous: PullLocks) -> None:
    previous.take(QUEUE, "a", A, THERE)
    told = previous.account(QUEUE, THERE)
    came(locks, PullLocks(0, epoch=9, online_epoch=2))
    number = locks.take(QUEUE, "b", B, 1)
    assert number is not None and locks.came_from(QUEUE, 2) is None
    locks.adopt(QUEUE, told, 2)
    locks.check_commit(QUEUE, "b", B, 3, number=number)


def test_pop_18_a_reset_before_the_answer_stands(locks: PullLocks, previous: PullLocks) -> None:
    previous.take(QUEUE, "a", A, THERE)
    told = previous.account(QUEUE, THERE)
    arrive(locks)
    locks.void(QUEUE, 1)
    locks.adopt(QUEUE, told, 2)
    assert locks.take(QUEUE, "a", A, 3, held=True) is None


def test_order_05_a_broker_that_was_taken_over_itself_tells_for_how_long_it_does_not_know(locks: PullLocks) -> None:
    taken_ms = THERE - 1_000
    came(locks, PullLocks(taken_ms, epoch=9, online_epoch=2))
    assert locks.take(QUEUE, "b", B, PULL_LOCK_SETTLE_MS - 1_001) is None
    assert locks.take(QUEUE, "a", B, PULL_LOCK_SETTLE_MS - 1_001, held=True) is not None, "it may claim"
    locks.release(QUEUE, "a")
    assert locks.take(QUEUE, "b", B, PULL_LOCK_SETTLE_MS - 1_000) is not None


def test_order_05_an_answer_never_makes_anybody_wait_longer(locks: PullLocks) -> None:
    """The previous broker's process died, and this one has taken that broker over."""
    came(locks, PullLocks(THERE + 20_000, epoch=9, online_epoch=2), asked_ms=20_000)
    assert locks.take(QUEUE, "b", B, PULL_LOCK_SETTLE_MS + LATE_MS - 1) is None
    assert locks.take(QUEUE, "b", B, PULL_LOCK_SETTLE_MS + LATE_MS) is not None


def test_order_05_what_was_told_goes_along_when_the_queue_moves_on_within_the_process(
    locks: PullLocks, previous: PullLocks
) -> None:
    previous.take(QUEUE, "a", A, THERE - 9)
    previous.release(QUEUE, "a")
    came(locks, previous)
    third = PullLocks(-PULL_LOCK_SETTLE_MS, epoch=5, online_epoch=2)
    third.receive("id-1", QUEUE.partition, locks)
    assert locks.came_from(QUEUE, 1) is None and third.came_from(QUEUE, 1) is None
    assert third.take(QUEUE, "b", B, 1) is not None
    third.sweep(PULL_LOCK_SETTLE_MS + LATE_MS)
    third.pull(QUEUE, "b", B, PULL_LOCK_SETTLE_MS + LATE_MS)
