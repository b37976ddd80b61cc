"""Fences: no row stands behind one that its writer did not know of (SPEC META-2, ROUTE-6)."""

from __future__ import annotations

from typing import Final

import pytest

from deltamq.mq.errors import Fenced, Unknown
from deltamq.tables.log.fences import ANY_EPOCH, RESET_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore, failing
from tests.rows import REF, all_bodies, batch
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

BROKER: Final = "broker"


def refused(log: PartitionLog, fence_epochs: dict[str, int]) -> Fenced:
    """The refusal of an append by a writer who knows this, which stored nothing."""
    before = all_bodies(log)
    with pytest.raises(Fenced) as caught:
        log.append([batch(b"refused")], fence_epochs=fence_epochs)
    log.refresh()
    assert all_bodies(log) == before
    return caught.value


def test_meta_02_an_append_that_does_not_know_the_fence_is_refused(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"before")], fence_epochs={})
    assert log.fence(BROKER, 3) == 1
    error = refused(log, {BROKER: 2})
    assert (error.code, error.extra) == ("fenced", {"fence": BROKER, "epoch": 3})
    refused(log, {})
    refused(log, {"route": 9})
    log.append([batch(b"knows")], fence_epochs={BROKER: 3})
    log.append([batch(b"knows more")], fence_epochs={BROKER: 4, "route": 1})
    log.append([batch(b"asks for no fence")])
    assert all_bodies(log) == [b"before", b"knows", b"knows more", b"asks for no fence"]


def test_meta_02_fences_of_different_names_are_apart(open_log: OpenLog) -> None:
    log = open_log()
    log.fence(BROKER, 7)
    log.fence("route", 2)
    assert log.fences == {BROKER: 7, "route": 2}
    assert refused(log, {BROKER: 7, "route": 1}).extra["fence"] == "route"
    assert refused(log, {BROKER: 6, "route": 2}).extra["fence"] == BROKER
    log.append([batch(b"knows both")], fence_epochs={BROKER: 7, "route": 2})


def test_pop_18_the_fence_of_a_reset_concerns_only_who_brings_back_what_was_in_flight(open_log: OpenLog) -> None:
    log = open_log()
    log.fence(BROKER, 7)
    log.fence(RESET_FENCE, 4)
    assert refused(log, {BROKER: ANY_EPOCH, RESET_FENCE: 3}).extra["fence"] == RESET_FENCE
    assert refused(log, {RESET_FENCE: 4}).extra["fence"] == BROKER
    log.append([batch(b"of after the reset")], fence_epochs={BROKER: ANY_EPOCH, RESET_FENCE: 4})
    log.append([batch(b"of the owner")], fence_epochs={BROKER: 7})


@pytest.mark.parametrize("epoch", [4, 5])
def test_meta_02_a_fence_that_is_there_is_not_put_up_again(open_log: OpenLog, epoch: int) -> None:
    one, two = open_log(), open_log()
    one.fence(BROKER, 5)
    version = one.version
    two.append([batch(b"since")])
    assert two.fence(BROKER, epoch) == 1
    assert (two.version, two.fences) == (version + 1, {BROKER: 5})


def test_meta_02_a_process_that_did_not_look_is_refused_all_the_same(files: MemoryStore, open_log: OpenLog) -> None:
    """It finds the fence because it loses the race for the version that the fence has."""
    one, two = open_log(FaultyStore(files, cheap_look=False)), open_log()
    two.fence(BROKER, 1)
    assert one.fences == {}
    refused(one, {})
    assert one.fences == {BROKER: 1}


@pytest.mark.promise("HOST-6")
@pytest.mark.parametrize("call", ["put", "put_if_absent"])
def test_meta_02_a_fence_in_the_middle_of_an_append_refuses_it(
    files: MemoryStore, open_log: OpenLog, call: str
) -> None:
    store = FaultyStore(files)
    one, two = open_log(store), open_log()
    store.once("before", call, lambda _: two.fence(BROKER, 1) and None, key="/orders@")
    refused(one, {})
    assert all_bodies(open_log()) == []


def test_meta_02_an_append_in_the_middle_of_a_fence_is_before_it(files: MemoryStore, open_log: OpenLog) -> None:
    store = FaultyStore(files)
    one, two = open_log(store), open_log()
    store.once(
        "before", "put_if_absent", lambda _: two.append([batch(b"fast")], fence_epochs={}) and None, key="/orders@"
    )
    assert one.fence(BROKER, 1) == 1
    refused(two, {})
    assert all_bodies(two) == [b"fast"]


def test_send_05_a_request_that_is_stored_is_answered_behind_a_fence(open_log: OpenLog) -> None:
    log = open_log()
    request = batch(b"once", producer="p", seq=1)
    log.append([request], fence_epochs={})
    log.fence(BROKER, 1)
    assert log.append([request], fence_epochs={})[0].duplicate
    with pytest.raises(Fenced):
        log.append([request, batch(b"new", producer="p", seq=2)], fence_epochs={})
    assert all_bodies(log) == [b"once"]


def test_meta_03_fences_are_rebuilt_from_commits_and_checkpoints(open_log: OpenLog, clock: SetClock) -> None:
    one = open_log(checkpoint_commits=3, log_keep_ms=1_000)
    one.fence(BROKER, 4)
    for _ in range(5):
        one.append([batch(b"x")])
    assert open_log().fences == {BROKER: 4}
    for _ in range(40):
        clock.advance_ms(200)
        one.append([batch(b"x")])
        one.maintain()
    reopened = open_log()
    assert reopened.checkpoint_version > 1
    assert reopened.fences == {BROKER: 4}
    reopened.fence("route", 2)
    refused(one, {BROKER: 4})


def test_meta_03_a_log_of_a_fence_alone_has_a_checkpoint_that_opens(files: MemoryStore, open_log: OpenLog) -> None:
    log = open_log(checkpoint_commits=1)
    log.fence(BROKER, 1)
    assert log.maintain()
    names = files.names(f"{REF.folder}/_delta_log")
    assert f"{1:020d}.checkpoint.parquet" in names
    assert open_log().fences == {BROKER: 1}


def test_rely_5_a_fence_without_an_answer_may_be_asked_for_again(files: MemoryStore, open_log: OpenLog) -> None:
    """The put arrives, its answer does not, and the store is out when the fence is looked for."""
    store = FaultyStore(files)
    log = open_log(store)

    def out(_: str) -> None:
        store.before["read"] = failing(Unknown("the store is out"))
        raise Unknown("no answer")

    store.once("after", "put_if_absent", out, key="_delta_log")
    with pytest.raises(Unknown):
        log.fence(BROKER, 1)
    del store.before["read"]
    version = open_log().version
    assert log.fence(BROKER, 1) == 0
    assert (log.version, log.fences) == (version, {BROKER: 1})


def test_rely_5_a_fence_whose_put_was_slept_through_is_put_up_in_the_end(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    """The other process cleans up what the sleeper's put would have followed."""
    store = FaultyStore(files)
    one = open_log(store, log_keep_ms=1_000)
    two = open_log(log_keep_ms=1_000, checkpoint_commits=2)

    def sleep(_: str) -> None:
        for _ in range(20):
            clock.advance_ms(500)
            two.append([batch(b"meanwhile")], fence_epochs={})
            two.maintain()

    store.once("before", "put_if_absent", sleep, key="_delta_log")
    with pytest.raises(Unknown):
        one.fence(BROKER, 1)
    assert one.fence(BROKER, 1) == 20
    refused(two, {})


def test_rely_1_all_before_a_fence_is_durable(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store)
    log.append([batch(b"soon")], flush=Flush.ASYNC)
    assert log.unsynced
    log.fence(BROKER, 1)
    assert not log.unsynced
    assert any(key.startswith(f"{REF.folder}/0000") for key in ",".join(store.keys("sync")).split(","))
