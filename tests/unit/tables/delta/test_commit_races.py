"""Two writers on one partition, and commits without a clear answer (SPEC RELY-2, RELY-5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from deltamq.mq.errors import Corrupt, Unavailable, Unknown
from deltamq.tables.log.bounds import LogBounds
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import MemoryStore, NotDurable
from tests.faulty_store import FaultyStore, failing
from tests.rows import REF, all_bodies, batch
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

COMMIT = f"{REF.folder}/_delta_log"


def commit_key(version: int) -> str:
    return f"{COMMIT}/{version:020d}.json"


def in_between(log: Callable[[], PartitionLog], *bodies: bytes) -> Callable[[str], None]:
    """A fault that is no fault: another writer appends at this very moment."""

    def append(_key: str) -> None:
        for body in bodies:
            log().append([batch(body)])

    return append


# RELY-2: a lost race is renumbered.


@pytest.mark.parametrize("call", ["put", "put_if_absent"])
@pytest.mark.parametrize("cheap_look", [True, False])
def test_rely_2_an_append_that_lost_a_race_is_numbered_again(
    files: MemoryStore, open_log: OpenLog, call: str, cheap_look: bool
) -> None:
    store = FaultyStore(files, cheap_look=cheap_look)
    one, two = open_log(store), open_log()
    store.once("before", call, in_between(lambda: two, b"other", b"other too"), key="/orders@")
    result = one.append([batch(b"mine", b"mine too")])[0]
    assert (result.base_offset, result.version) == (2, 3)
    assert all_bodies(one) == [b"other", b"other too", b"mine", b"mine too"]
    assert all_bodies(open_log()) == all_bodies(one)


def test_rely_2_the_rows_of_a_renumbered_batch_carry_their_new_offsets(store: FaultyStore, open_log: OpenLog) -> None:
    one, two = open_log(store), open_log()
    store.once("before", "put_if_absent", in_between(lambda: two, b"other"), key="/orders@")
    one.append([batch(b"mine")])
    for log in (one, open_log()):
        rows = log.read(0, max_messages=9, max_bytes=9_999).rows
        assert rows.column("offset").to_pylist() == [0, 1]
        assert [f.start for f in log.files] == [0, 1]


def test_rely_2_a_state_that_is_behind_is_no_reason_to_lose(open_log: OpenLog) -> None:
    one, two = open_log(), open_log()
    for i in range(10):
        two.append([batch(str(i).encode())])
    assert one.append([batch(b"mine")])[0].base_offset == 10


def test_rely_2_a_writer_looks_for_others_until_it_commits_again_and_again_and_meets_none(
    store: FaultyStore, open_log: OpenLog, clock: SetClock
) -> None:
    one, two = open_log(store), open_log()

    def looks() -> bool:
        store.calls.clear()
        one.append([batch(b"mine")])
        return bool(store.keys("exists"))

    assert [looks(), looks(), looks()] == [True, False, False]
    clock.advance_ms(1_500)
    assert [looks(), looks()] == [True, False], "a writer that was idle looks once"
    two.append([batch(b"other")])
    assert one.append([batch(b"mine")])[0].base_offset == 6, "it has lost a race, and goes on behind the other"
    assert [looks(), looks()] == [True, True], "others may commit again"
    clock.advance_ms(9_500)
    assert looks()
    clock.advance_ms(900)
    assert not looks()


def test_rely_2_an_append_that_names_its_offset_knows_what_others_have_stored(
    store: FaultyStore, open_log: OpenLog
) -> None:
    one, two = open_log(store), open_log()
    one.append([batch(b"mine")])
    two.append([batch(b"other")])
    assert one.append([batch(b"mine")], expected_offset=2)[0].base_offset == 2


def test_rely_2_a_race_lost_to_a_roll_up_takes_the_next_version_at_the_same_offset(
    store: FaultyStore, open_log: OpenLog
) -> None:
    one, two = open_log(store), open_log(rollup_files=4)
    for i in range(4):
        two.append([batch(str(i).encode())])
    store.once("before", "put_if_absent", lambda _: two.maintain() or None, key="/orders@")
    result = one.append([batch(b"mine")])[0]
    assert (result.base_offset, result.version) == (4, 6)
    assert len(one.files) == len(open_log().files) == 2
    assert all_bodies(one) == [b"0", b"1", b"2", b"3", b"mine"]


def test_rely_2_a_roll_up_that_lost_a_race_to_an_append_still_stands(store: FaultyStore, open_log: OpenLog) -> None:
    one, two = open_log(store, rollup_files=4), open_log()
    for i in range(4):
        one.append([batch(str(i).encode())])
    store.once("before", "put_if_absent", in_between(lambda: two, b"other"), key="/orders@")
    assert one.maintain()
    assert [f.count for f in one.files] == [4, 1]
    assert all_bodies(one) == all_bodies(open_log()) == [b"0", b"1", b"2", b"3", b"other"]


def test_rely_2_a_roll_up_whose_files_another_rolled_up_is_dropped(store: FaultyStore, open_log: OpenLog) -> None:
    one, two = open_log(store, rollup_files=4), open_log(rollup_files=4)
    for i in range(4):
        one.append([batch(str(i).encode())])
    two.refresh()
    store.once("before", "put_if_absent", lambda _: two.maintain() or None, key="/orders@")
    one.maintain()
    assert [f.path for f in one.files] == [f.path for f in two.files]
    assert all_bodies(open_log()) == [b"0", b"1", b"2", b"3"]


def test_rely_2_a_roll_up_that_meets_retention_is_dropped(store: FaultyStore, open_log: OpenLog) -> None:
    one, two = open_log(store, rollup_files=4), open_log()
    for i in range(5):
        one.append([batch(str(i).encode())])
    two.refresh()
    store.once(
        "before", "put_if_absent", lambda _: two.rewrite([], [two.files[0]], operation="DELETE") or None, key="/orders@"
    )
    one.maintain()
    assert (one.min_offset, one.end_offset) == (1, 5)
    assert all_bodies(one) == all_bodies(open_log()) == [b"1", b"2", b"3", b"4"]


def test_send_05_a_request_that_lost_its_race_to_its_own_repeat_is_stored_once(
    store: FaultyStore, open_log: OpenLog
) -> None:
    """A client that timed out sent it again to another process, which was faster."""
    one, two = open_log(store), open_log()
    request = batch(b"a", producer="p", seq=1)
    store.once("before", "put_if_absent", lambda _: two.append([request]) and None, key="/orders@")
    result = one.append([request])[0]
    assert (result.base_offset, result.duplicate) == (0, True)
    assert all_bodies(one) == [b"a"]


def test_rely_8_an_append_gives_up_after_a_limit_of_lost_races(store: FaultyStore, open_log: OpenLog) -> None:
    one, two = open_log(store, LogBounds(races_max=3)), open_log()
    store.before["put_if_absent"] = in_between(lambda: two, b"other")
    with pytest.raises(Unavailable) as refused:
        one.append([batch(b"mine")])
    assert refused.value.code == "contention"
    del store.before["put_if_absent"]
    assert all_bodies(one) == [b"other"] * 3


def test_a_process_counts_the_commits_that_others_have_beaten(
    files: MemoryStore, store: FaultyStore, open_log: OpenLog
) -> None:
    with contextlib.closing(Warehouse.open("", store=store)) as warehouse:
        log, other = warehouse.create(REF), open_log()
        log.append([batch(b"a")])
        assert warehouse.lost_races == 0
        store.once("before", "put_if_absent", in_between(lambda: other, b"other"), key="/orders@")
        log.append([batch(b"b")])
        assert warehouse.lost_races == 1


# RELY-5: no clear answer.


def test_rely_5_a_commit_that_was_stored_without_an_answer_is_found(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store)
    store.once("after", "put_if_absent", failing(Unknown("no answer")), key="/orders@")
    assert log.append([batch(b"a")])[0].base_offset == 0
    assert log.append([batch(b"b")])[0].base_offset == 1
    assert all_bodies(log) == all_bodies(open_log()) == [b"a", b"b"]


def test_rely_5_a_commit_without_an_answer_that_is_not_there_may_still_arrive(
    store: FaultyStore, open_log: OpenLog
) -> None:
    log = open_log(store)
    store.once("before", "put_if_absent", failing(Unknown("no answer")), key="/orders@")
    with pytest.raises(Unknown, match="may still arrive"):
        log.append([batch(b"a", producer="p", seq=1)])
    again = log.append([batch(b"a", producer="p", seq=1)])[0]
    assert (again.base_offset, again.duplicate) == (0, False)
    assert all_bodies(open_log()) == [b"a"]


def test_rely_5_a_commit_that_arrives_late_is_not_stored_twice(files: MemoryStore, open_log: OpenLog) -> None:
    """The put is still under way while the caller already asks again."""
    held: list[tuple[str, bytes]] = []

    class Slow(FaultyStore):
        def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
            if not held and key == commit_key(1):
                held.append((key, data))
                raise Unknown("no answer yet")
            if held and key == commit_key(1):
                files.put_if_absent(*held[0], durable=True)  # now it arrives
            return super().put_if_absent(key, data, durable=durable)

    log = open_log(Slow(files, cheap_look=False))
    with pytest.raises(Unknown):
        log.append([batch(b"a", producer="p", seq=1)])
    again = log.append([batch(b"a", producer="p", seq=1)])[0]
    assert (again.base_offset, again.duplicate) == (0, True)
    assert all_bodies(open_log()) == [b"a"]


def test_rely_5_a_commit_without_an_answer_whose_version_another_has_is_numbered_again(
    store: FaultyStore, open_log: OpenLog
) -> None:
    one, two = open_log(store), open_log()

    def lost(key: str) -> None:
        two.append([batch(b"other")])
        raise Unknown("no answer")

    store.once("before", "put_if_absent", lost, key="/orders@")
    assert one.append([batch(b"mine")])[0].base_offset == 1
    assert all_bodies(one) == all_bodies(open_log()) == [b"other", b"mine"]


def test_rely_5_a_put_that_was_repeated_below_us_and_found_itself_is_stored_once(
    files: MemoryStore, open_log: OpenLog
) -> None:
    """An HTTP layer repeats a put whose answer was lost, and is told that the key exists."""

    class Repeating(FaultyStore):
        repeats = False

        def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
            won = super().put_if_absent(key, data, durable=durable)
            return super().put_if_absent(key, data, durable=durable) if self.repeats else won

    store = Repeating(files)
    log = open_log(store)
    log.append([batch(b"before")])
    store.repeats = True
    assert log.append([batch(b"a")])[0].base_offset == 1
    assert all_bodies(open_log()) == [b"before", b"a"]


def test_rely_5_a_commit_that_cannot_be_read_back_is_unknown(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store)

    def cut_off(key: str) -> None:
        store.before["read"] = failing(Unavailable("the network is gone"))
        raise Unknown("no answer")

    store.once("after", "put_if_absent", cut_off, key="/orders@")
    with pytest.raises(Unknown, match="could not be read back"):
        log.append([batch(b"a", producer="p", seq=1)])
    del store.before["read"]
    again = log.append([batch(b"a", producer="p", seq=1)])[0]
    assert (again.base_offset, again.duplicate) == (0, True)
    assert all_bodies(open_log()) == [b"a"]


def test_rely_1_a_commit_that_is_stored_but_not_durable_is_unknown_until_it_is(
    store: FaultyStore, open_log: OpenLog
) -> None:
    log = open_log(store)
    store.once("after", "put_if_absent", failing(NotDurable("the folder could not be synced")), key="/orders@")
    request = batch(b"a", producer="p", seq=1)
    with pytest.raises(NotDurable):
        log.append([request])
    assert log.unsynced
    store.before["replace"] = failing(Unavailable("still no good"))
    with pytest.raises(Unavailable):
        log.append([request])
    del store.before["replace"]
    again = log.append([request])[0]
    assert (again.base_offset, again.duplicate, again.durable) == (0, True, True)
    written = store.keys("replace")
    assert commit_key(1) in written and any(k.endswith(".parquet") for k in written)
    assert not log.unsynced


def test_rely_1_a_repeat_that_may_stay_in_the_page_cache_does_not_wait(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store)
    store.once("after", "put_if_absent", failing(NotDurable("the folder could not be synced")), key="/orders@")
    request = batch(b"a", producer="p", seq=1)
    with pytest.raises(NotDurable):
        log.append([request])
    again = log.append([request], flush=Flush.ASYNC)[0]
    assert (again.duplicate, again.durable) == (True, False)


@pytest.mark.parametrize("call", ["read", "exists"])
def test_an_error_before_the_put_stores_nothing(store: FaultyStore, open_log: OpenLog, call: str) -> None:
    one, two = open_log(store), open_log()
    two.append([batch(b"other")])
    store.once("before", call, failing(Unavailable("out")))
    with pytest.raises(Unavailable):
        one.append([batch(b"mine")])
    assert one.append([batch(b"mine")])[0].base_offset == 1


def test_rely_5_a_roll_up_without_an_answer_deletes_nothing(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, rollup_files=4)
    for i in range(4):
        log.append([batch(str(i).encode())])
    store.once("before", "put_if_absent", failing(Unknown("no answer")), key="/orders@")
    with pytest.raises(Unknown):
        log.maintain()
    assert all_bodies(open_log()) == [b"0", b"1", b"2", b"3"]
    assert log.maintain()
    assert len(log.files) == 1
    assert all_bodies(open_log()) == [b"0", b"1", b"2", b"3"]


# RELY-4: a log that contradicts itself.


def test_rely_4_a_damaged_commit_of_another_writer_stops_the_partition(files: MemoryStore, open_log: OpenLog) -> None:
    one, two = open_log(), open_log()
    two.append([batch(b"a")])
    raw = bytearray(files.read(commit_key(1)).to_pybytes())
    raw[200] ^= 1
    files.replace(commit_key(1), bytes(raw))
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"00001\.json"):
            one.append([batch(b"b")])
    with pytest.raises(Corrupt):
        one.read(0, max_messages=1, max_bytes=1)


def test_rely_4_other_partitions_go_on_when_one_stops(files: MemoryStore) -> None:
    from deltamq.tables.log.warehouse import Warehouse
    from deltamq.tables.paths import PartitionRef, Space

    other = PartitionRef(Space.TOPICS, "orders", "orders@broker-b")
    writer, reader = Warehouse.open("", store=files), Warehouse.open("", store=files)
    for ref in (REF, other):
        writer.create(ref)
        reader.open_partition(ref)
        writer.open_partition(ref).append([batch(b"a")])
    files.replace(commit_key(1), b"")
    with pytest.raises(Corrupt):
        reader.open_partition(REF).refresh()
    assert reader.open_partition(other).append([batch(b"b")])[0].base_offset == 1


def test_an_error_in_the_middle_of_a_rebuild_leaves_the_duplicate_window_whole(
    store: FaultyStore, files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    """A writer that slept loads the log again, and the store fails in the middle of it."""
    one, two = open_log(store), open_log(checkpoint_commits=2)
    one.append([batch(b"a", producer="p", seq=1)])
    for _ in range(4):
        two.append([batch(b"x")])
        clock.advance_ms(61_000)
        two.maintain()
    clock.advance_ms(61_000)
    two.maintain()
    assert commit_key(1) not in [f"{COMMIT}/{e.name}" for e in files.entries(COMMIT)]
    store.before["read_parts"] = failing(Unavailable("out"))
    request = batch(b"a", producer="p", seq=1)
    for _ in range(2):
        with pytest.raises(Unavailable):
            one.append([request])
    del store.before["read_parts"]
    again = one.append([request])[0]
    assert (again.base_offset, again.duplicate) == (0, True)
