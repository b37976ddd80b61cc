"""Reset and replay as jobs, with storage credentials alone, beside a service that runs (SPARK-10, POP-18, RETRY-3)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltamq.jobs.export.replay import Chosen, Replayed, replay_dead_letters
from deltamq.jobs.export.reset import Reset, reset_offsets, target_of
from deltamq.jobs.sink.open_sink import SinkSettings
from deltamq.mq.errors import NotFound, Unprocessable
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.log.warehouse import Warehouse
from tests.api.queue_calls import Queue, queue_in
from tests.api.running import until


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A service with a topic of one partition and a group."""
    with queue_in(tmp_path / "warehouse") as made:
        made.topic()
        yield made


@contextlib.contextmanager
def _elsewhere(queue: Queue) -> Iterator[Warehouse]:
    """The warehouse as another process sees it."""
    warehouse = Warehouse.open(str(queue.folder), clock=queue.clock)
    with contextlib.closing(warehouse):
        yield warehouse


def _until_seen(queue: Queue, done: Reset) -> None:
    """Wait until the service has looked at the metadata after a reset."""
    epoch = done.epoch
    assert epoch is not None
    until(lambda: queue.api.service.meta.now.groups.epoch >= epoch)


def _settings(queue: Queue) -> SinkSettings:
    return SinkSettings.of(queue.config, str(queue.folder))


@pytest.mark.promise("PIPE-11")
def test_pop_18_a_reset_by_a_job_is_seen_by_the_service_and_voids_what_was_in_flight(queue: Queue) -> None:
    group = queue.group("billing")
    queue.send("a", "b", "c")
    old = group.pop()
    assert old.bodies == ["a", "b", "c"]
    with _elsewhere(queue) as warehouse:
        seen = reset_offsets(warehouse, "billing", "orders", target_of("earliest"), dry_run=True)
        assert (seen.epoch, seen.messages, seen.offsets) == (None, 3, {"orders@broker-a": 0})
        done = reset_offsets(warehouse, "billing", "orders", {"orders@broker-a": 1})
    assert done.messages == 2
    _until_seen(queue, done)
    again = group.pop_again(2)
    assert again.bodies == ["b", "c"]
    assert list(group.ack(old.handles).values()) == ["handle_expired"] * 3
    assert group.ack(again.handles) == {}


def test_pop_18_a_reset_by_a_job_drops_retries_that_a_revive_run_is_about_to_append(queue: Queue) -> None:
    group = queue.group("billing")
    queue.send("a", "b")
    group.nack(group.pop().handles)
    queue.advance(20_000)
    queue.revive()
    assert len(queue.retries("billing")) == 2
    with _elsewhere(queue) as warehouse:
        done = reset_offsets(warehouse, "billing", "orders", target_of("latest"), retries="drop")
    assert set(done.offsets) == {"orders@broker-a", "%RETRY%billing_orders@broker-a"}
    queue.advance(60_000)
    queue.revive()
    queue.restart()
    assert queue.consumer("billing").pop().bodies == []


@pytest.mark.promise("PIPE-11")
@pytest.mark.parametrize("step", ["reset.before_event", "reset.after_event", "reset.between_fences"])
def test_pop_18_a_reset_that_was_killed_is_asked_for_again(queue: Queue, step: str) -> None:
    queue.group("billing")
    queue.send("a", "b", "c")
    arm(f"{step}=raise")
    try:
        with _elsewhere(queue) as warehouse, pytest.raises(FailpointHit):
            reset_offsets(warehouse, "billing", "orders", {"orders@broker-a": 2})
    finally:
        arm("")
    with _elsewhere(queue) as warehouse:
        done = reset_offsets(warehouse, "billing", "orders", {"orders@broker-a": 2})
    _until_seen(queue, done)
    assert queue.consumer("billing").pop_again(1).bodies == ["c"]


def test_pop_18_a_reset_to_where_nothing_is_changes_nothing(queue: Queue) -> None:
    queue.group("billing")
    with _elsewhere(queue) as warehouse:
        with pytest.raises(Unprocessable, match="end offset 0"):
            reset_offsets(warehouse, "billing", "orders", {"orders@broker-a": 9})
        with pytest.raises(NotFound, match="no partition"):
            reset_offsets(warehouse, "billing", "orders", {"elsewhere@broker-a": 0})
        with pytest.raises(NotFound, match="no group"):
            reset_offsets(warehouse, "nobody", "orders", target_of("first"))


def _bury(queue: Queue, *bodies: str) -> None:
    group = queue.group("billing")
    queue.send(*bodies)
    group.dead(group.pop().handles)
    queue.advance(20_000)
    queue.revive()
    assert sorted(row["body"].decode() for row in queue.dead_letters("billing")) == sorted(bodies)


@pytest.mark.promise("PIPE-12")
def test_retry_03_dead_letters_are_counted_first_and_then_sent_back_once_by_job_and_service(queue: Queue) -> None:
    _bury(queue, "a", "b", "c")
    settings = _settings(queue)
    assert replay_dead_letters(settings, "billing", Chosen(), dry_run=True) == Replayed(matched=3)
    one = frozenset({queue.dead_letters("billing")[0]["message_id"]})
    assert replay_dead_letters(settings, "billing", Chosen(message_ids=one)) == Replayed(matched=1, replayed=1)
    assert replay_dead_letters(settings, "billing", Chosen()) == Replayed(matched=3, replayed=2, duplicates=1)
    told = queue.consumer("billing").call("dead-letters/replay", to="origin").json
    assert (told["replayed"], told["duplicates"]) == (0, 3)
    assert sorted(queue.consumer("billing").pop_again(3).bodies) == ["a", "b", "c"]


def test_retry_03_dead_letters_go_to_their_own_group_alone_when_asked(queue: Queue) -> None:
    _bury(queue, "a")
    settings = _settings(queue)
    arm("replay.after_append=raise")
    try:
        with pytest.raises(FailpointHit):
            replay_dead_letters(settings, "billing", Chosen(), to="retry")
    finally:
        arm("")
    assert replay_dead_letters(settings, "billing", Chosen(), to="retry") == Replayed(matched=1, duplicates=1)
    [row] = queue.retries("billing")
    assert (row["body"], row["reconsume_times"], row["headers"]) == (b"a", 0, None)


def test_retry_08_job_and_service_see_what_the_other_sent_back_and_what_is_deleted(queue: Queue) -> None:
    _bury(queue, "a", "b", "c")
    settings, billing = _settings(queue), queue.consumer("billing")
    place = "%DLQ%billing@broker-a"
    billing.call("dead-letters/replay", offsets={place: [0]})
    queue.api.call("DELETE", "/v1/groups/billing/dead-letters", {"offsets": {place: [1]}})
    assert replay_dead_letters(settings, "billing", Chosen(), dry_run=True) == Replayed(matched=2, duplicates=1)
    arm("replay.before_mark=raise")
    try:
        with pytest.raises(FailpointHit):
            replay_dead_letters(settings, "billing", Chosen())
    finally:
        arm("")

    def states() -> dict[int, str]:
        listed = queue.api.call("GET", "/v1/groups/billing/dead-letters").json["messages"]
        return {one["offset"]: one["state"] for one in listed}

    assert states() == {0: "sent_back", 2: "new"}, "the last one was sent, its mark was not stored"
    assert replay_dead_letters(settings, "billing", Chosen()) == Replayed(matched=2, duplicates=2)
    assert states() == {0: "sent_back", 2: "sent_back"}
    done = replay_dead_letters(settings, "billing", Chosen(offsets={place: frozenset({1, 2})}))
    assert (done.duplicates, done.failed) == (1, {"dead_letter_deleted": 1})
    kept = [row["body"].decode() for row in queue.dead_letters("billing") if row["offset"] != 1]
    assert sorted(billing.pop_again(2).bodies) == sorted(kept)


@pytest.mark.parametrize(
    ("chosen", "matched"),
    [
        (Chosen(topics=frozenset({"orders"})), 2),
        (Chosen(topics=frozenset({"bills"})), 0),
        (Chosen(since=datetime(2000, 1, 1, tzinfo=UTC)), 2),
        (Chosen(until=datetime(2000, 1, 1, tzinfo=UTC)), 0),
        (Chosen(offsets={"%DLQ%billing@broker-a": frozenset({1})}), 1),
    ],
)
def test_retry_03_what_is_sent_back_is_chosen(queue: Queue, chosen: Chosen, matched: int) -> None:
    _bury(queue, "a", "b")
    assert replay_dead_letters(_settings(queue), "billing", chosen, dry_run=True).matched == matched


def test_retry_03_dead_letters_that_are_not_there_are_told(queue: Queue) -> None:
    _bury(queue, "a")
    chosen = Chosen(offsets={"%DLQ%billing@broker-a": frozenset({0, 7})})
    done = replay_dead_letters(_settings(queue), "billing", chosen)
    assert (done.replayed, done.failed) == (1, {"offset_out_of_range": 1})
    with pytest.raises(NotFound, match="no dead letters in"):
        replay_dead_letters(_settings(queue), "billing", Chosen(offsets={"x": frozenset({1})}))
