"""Handles that are not what they seem, or no longer: refused, and nothing changes (SPEC POP-5, POP-12, POP-18)."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from deltamq.api.ports import Ports
from deltamq.tables.config_sections import Secret
from deltamq.tables.queue.refs import REVIVE_LOG
from tests.api.queue_calls import Queue, queue_in
from tests.faulty_store import faulty_disk

INVALID, EXPIRED = "handle_invalid", "handle_expired"

pytestmark = pytest.mark.static_too


def _garbled(handle: str) -> list[str]:
    """One character wrong, one missing, one too many, and other nonsense."""
    drawn = random.Random(3)
    found = []
    for _ in range(40):
        at = drawn.randrange(len(handle))
        other = drawn.choice([c for c in "ABCxyz019-_" if c != handle[at]])
        found += [
            handle[:at] + other + handle[at + 1 :],
            handle[:at] + handle[at + 1 :],
            handle[:at] + other + handle[at:],
        ]
    return [*found, "", " ", handle[::-1], handle + handle, handle.upper(), "1", "é" * 20, "0 0 0 0 0 a b 0"]


def test_pop_05_a_garbled_handle_is_refused_and_changes_nothing(queue: Queue) -> None:
    queue.send("a")
    billing = queue.consumer("billing")
    (handle,) = billing.pop().handles
    garbled = [text for text in _garbled(handle) if text != handle]
    assert billing.ack(garbled) == dict.fromkeys(garbled, INVALID)
    assert billing.nack(garbled) == billing.dead(garbled) == dict.fromkeys(garbled, INVALID)
    for text in garbled[:5]:
        refused = billing.invisible(text, 20_000)
        assert (refused.status, refused.json["code"], refused.json["field"]) == (400, INVALID, "handle")
    assert billing.in_flight() == 1
    assert billing.ack([handle]) == {}


def test_pop_05_one_bad_handle_spoils_no_other(queue: Queue) -> None:
    queue.send(*map(str, range(40)))
    billing = queue.consumer("billing")
    handles = billing.pop(40).handles
    mixed = [*handles[:10], "bad", *handles[10:35], handles[35][:-1], *handles[36:]]
    assert billing.ack(mixed) == {"bad": INVALID, handles[35][:-1]: INVALID}
    assert billing.in_flight() == 1
    assert billing.ack([handles[35]]) == {}


def test_pop_05_a_handle_of_another_group_is_refused(queue: Queue) -> None:
    queue.send("a")
    billing, audit = queue.consumer("billing"), queue.consumer("audit")
    (ours,), (theirs,) = billing.pop().handles, audit.pop().handles
    assert billing.ack([theirs]) == {theirs: INVALID}
    assert billing.pop(ack=[theirs]).failed == {theirs: INVALID}
    assert (billing.in_flight(), audit.in_flight()) == (1, 1)
    assert billing.ack([ours]) == audit.ack([theirs]) == {}


def test_pop_05_handles_are_signed_by_a_secret_that_stays_with_the_warehouse(queue: Queue, tmp_path: Path) -> None:
    queue.send("a")
    (handle,) = queue.consumer("billing").pop().handles
    with queue_in(tmp_path / "other") as other:
        other.topic()
        other.send("a")
        other.consumer("billing").pop()
        assert other.consumer("billing").ack([handle]) == {handle: INVALID}
    queue.restart()
    assert queue.consumer("billing").ack([handle]) == {}


def test_pop_05_an_operator_may_give_another_secret(queue: Queue) -> None:
    queue.send("a", "b")
    old, _ = queue.consumer("billing").pop().handles
    queue.restart(handle_secret=Secret("00112233445566778899aabbccddeeff"))
    billing = queue.consumer("billing")
    assert billing.ack([old]) == {old: INVALID}
    queue.send("c")
    (new,) = billing.pop().handles
    queue.restart()
    assert queue.consumer("billing").ack([new]) == {}


def test_pop_08_an_expired_handle_is_refused_by_every_call(queue: Queue) -> None:
    queue.send("a", "b")
    billing = queue.consumer("billing")
    handles = billing.pop(invisible_ms=10_000).handles
    queue.advance(10_000)
    expired = dict.fromkeys(handles, EXPIRED)
    assert billing.ack(handles) == billing.nack(handles) == billing.dead(handles) == expired
    assert billing.pop(ack=handles).failed == expired
    refused = billing.invisible(handles[0], 20_000)
    assert (refused.status, refused.json["code"]) == (409, EXPIRED)
    queue.advance(1_000)
    queue.revive()
    assert sorted(billing.pop_again(2).bodies) == ["a", "b"]


def test_pop_09_a_used_handle_is_dead_for_every_call(queue: Queue) -> None:
    queue.send("a")
    billing = queue.consumer("billing")
    (old,) = billing.pop().handles
    new = billing.invisible(old, 60_000).json["handle"]
    assert billing.ack([old]) == billing.nack([old]) == billing.dead([old]) == {old: EXPIRED}
    assert billing.invisible(old, 60_000).json["code"] == EXPIRED
    assert billing.ack([new]) == {}
    assert billing.invisible(new, 60_000).json["code"] == EXPIRED, "it is acknowledged"


def test_pop_12_handles_of_a_topic_that_was_made_again_are_refused(queue: Queue) -> None:
    queue.send("a")
    billing = queue.consumer("billing")
    (handle,) = billing.pop().handles
    assert queue.api.call("DELETE", "/v1/topics/orders").status == 204
    assert billing.ack([handle]) == {handle: EXPIRED}
    queue.topic()
    queue.send("b")
    assert billing.pop().bodies == ["b"]
    assert billing.ack([handle]) == billing.nack([handle]) == {handle: EXPIRED}
    assert billing.in_flight() == 1


def test_pop_12_handles_of_a_group_that_was_made_again_are_refused(queue: Queue) -> None:
    queue.send("a")
    billing = queue.group("billing")
    (handle,) = billing.pop().handles
    assert queue.api.call("DELETE", "/v1/groups/billing").status == 204
    assert billing.call("ack", handles=[handle]).json["code"] == "group_not_found"
    queue.group("billing")
    again = billing.pop()
    assert again.bodies == ["a"] and again.attempts == [1]
    assert billing.ack([handle]) == {handle: EXPIRED}
    assert billing.ack(again.handles) == {}


def test_pop_18_a_reset_voids_what_is_in_flight_and_goes_on_where_it_says(queue: Queue) -> None:
    queue.send("a", "b", "c")
    billing = queue.consumer("billing")
    found = billing.pop()
    billing.ack(found.handles[:2])
    reset = queue.api.call("POST", f"{billing.path}/topics/orders/offsets/reset", {"to": "first"})
    assert reset.status == 200, reset
    assert billing.in_flight() == 0
    assert billing.ack(found.handles) == dict.fromkeys(found.handles, EXPIRED)
    again = billing.pop()
    assert again.bodies == ["a", "b", "c"] and billing.ack(again.handles) == {}
    queue.advance(120_000)
    queue.revive()
    assert queue.retries("billing") == [], "checkpoints of the epoch before are void"


def test_pop_18_a_reset_while_acknowledgements_are_stored_refuses_them(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse", memory_match=False) as queue:
        queue.topic()
        queue.send(*map(str, range(64)))
        billing = queue.consumer("billing")
        handles = billing.pop(64).handles
        path = f"{billing.path}/topics/orders/offsets/reset"
        done = threading.Event()
        answers: list[dict[str, str]] = []

        def storm() -> None:
            while not done.is_set():
                answers.append(billing.ack(handles))

        threads = [threading.Thread(target=storm) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert queue.api.call("POST", path, {"to": "first"}).status == 200
        done.set()
        for thread in threads:
            thread.join(30)
        assert all(set(answer.values()) <= {EXPIRED} for answer in answers)
        assert billing.ack(handles) == dict.fromkeys(handles, EXPIRED)
        assert len(billing.pop(64).messages) == 64


@pytest.mark.parametrize("memory_match", [True, False])
def test_pop_08_a_storm_of_duplicate_acks_counts_each_message_once(tmp_path: Path, memory_match: bool) -> None:
    with queue_in(tmp_path / "warehouse", memory_match=memory_match) as queue:
        queue.topic()
        queue.send(*map(str, range(100)))
        billing = queue.consumer("billing")
        handles = billing.pop(100).handles
        drawn = random.Random(5)

        def storm() -> None:
            for _ in range(6):
                mine = handles * 2
                drawn.shuffle(mine)
                assert billing.ack(mine) == {}

        threads = [threading.Thread(target=storm) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert billing.in_flight() == 0
        queue.settle()
        (lane,) = billing.lanes()
        stored = queue.committed(lane)
        assert stored is not None and stored.offset == 100
        queue.advance(120_000)
        queue.revive()
        assert queue.retries("billing") == []


def test_pop_08_an_ack_that_is_stored_too_late_is_neither_believed_nor_called_refused(tmp_path: Path) -> None:
    """It came in time and its record is there, but the revive job may have passed while it was being stored."""
    store = faulty_disk(tmp_path / "warehouse")
    with queue_in(tmp_path / "warehouse", Ports(store=store), memory_match=False) as queue:
        queue.topic()
        queue.send("a", "b")
        billing = queue.consumer("billing")
        in_time, too_late = billing.pop(2, invisible_ms=10_000).handles
        assert billing.ack([in_time]) == {}
        store.once("after", "put_if_absent", lambda _: queue.clock.advance_ms(11_000), key=REVIVE_LOG)
        assert billing.ack([too_late]) == {too_late: "outcome_unknown"}
        assert billing.ack([too_late]) == {too_late: EXPIRED}


@pytest.mark.promise("JOB-5")
@pytest.mark.parametrize("what", ["ack", "nack", "dead", "invisible"])
def test_pop_09_what_a_job_ahead_of_our_clock_gave_again_is_given_once_and_no_handle_of_it_lives(
    tmp_path: Path, what: str
) -> None:
    with queue_in(tmp_path / "warehouse", memory_match=False) as queue:
        queue.topic()
        queue.send("a", "b")
        billing = queue.consumer("billing")
        early, late = (billing.pop(1, invisible_ms=ms).handles[0] for ms in (10_000, 60_000))
        queue.advance(8_000)
        queue.revive(ahead_ms=2_500)
        if what == "invisible":
            assert billing.invisible(early, 30_000).json["code"] == EXPIRED
            assert billing.invisible(late, 30_000).status == 200
        else:
            assert billing.handles_call(what, [early, late]) == {early: EXPIRED}
        again = billing.pop_again(1)
        assert (again.bodies, again.attempts) == (["a"], [2])
        assert billing.ack(again.handles) == {}
        queue.advance(400_000)
        queue.revive()
        assert [row["body"] for row in queue.retries("billing")].count(b"a") == 1
        assert b"a" not in [row["body"] for row in queue.dead_letters("billing")]


def test_an_ack_and_a_change_of_one_message_have_one_winner(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse", memory_match=False) as queue:
        queue.topic()
        queue.send(*map(str, range(64)))
        billing = queue.consumer("billing")
        handles = billing.pop(64).handles
        refused: dict[str, dict[str, str]] = {}

        def call(what: str) -> None:
            refused[what] = billing.handles_call(what, handles)

        threads = [threading.Thread(target=call, args=(what,)) for what in ("ack", "nack", "dead")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for handle in handles:
            assert [handle in refused[what] for what in ("ack", "nack", "dead")].count(False) == 1
