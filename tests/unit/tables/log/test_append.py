"""Appending: offsets, requests that are repeated, groups of requests in one commit (SPEC MODEL-3, SEND-5)."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from deltamq.mq.errors import OffsetMismatch, StorageFull, Unavailable
from deltamq.mq.limits import OFFSET_MAX, PRODUCER_REQUESTS_KEPT
from deltamq.tables.delta.snapshot import PartitionNotFound
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Appended, Batch
from deltamq.tables.log.bounds import LogBounds
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore, failing
from tests.rows import REF, all_bodies, all_rows, batch, numbered_bodies, rows
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog


def places(results: list[Appended]) -> list[tuple[int, int, bool]]:
    return [(r.base_offset, r.count, r.duplicate) for r in results]


@pytest.mark.promise("LOG-1")
def test_model_3_offsets_start_at_0_and_grow_by_1(open_log: OpenLog) -> None:
    log = open_log()
    assert (log.min_offset, log.end_offset) == (0, 0)
    assert places(log.append([batch(b"a", b"b")])) == [(0, 2, False)]
    assert places(log.append([batch(b"c")])) == [(2, 1, False)]
    assert all_rows(log).column("offset").to_pylist() == [0, 1, 2]


def test_model_3_offsets_go_on_after_reopening(open_log: OpenLog) -> None:
    open_log().append([batch(b"a", b"b")])
    assert places(open_log().append([batch(b"c")])) == [(2, 1, False)]


def test_requests_of_one_append_lie_side_by_side_in_their_order(open_log: OpenLog) -> None:
    log = open_log()
    results = log.append([batch(b"a"), batch(b"b", b"c"), batch(b"d")])
    assert places(results) == [(0, 1, False), (1, 2, False), (3, 1, False)]
    assert len({r.version for r in results}) == 1, "one commit for all"
    assert all_bodies(log) == [b"a", b"b", b"c", b"d"]


def test_requests_with_different_columns_go_into_one_append(open_log: OpenLog) -> None:
    log = open_log()
    keyed = pa.RecordBatch.from_pydict({"key": pa.array(["k"]), "body": pa.array([b"2"], pa.binary())})
    log.append([batch(b"1"), Batch(keyed)])
    assert all_rows(log).column("key").to_pylist() == [None, "k"]


def test_every_row_gets_an_id_of_its_own_unless_it_brings_one(open_log: OpenLog) -> None:
    log = open_log()
    given = pa.RecordBatch.from_pydict(
        {"message_id": pa.array(["mine", None]), "body": pa.array([b"1", b"2"], pa.binary())}
    )
    results = log.append([batch(b"0", b"0"), Batch(given)])
    ids = all_rows(log).column("message_id").to_pylist()
    assert ids == [i for r in results for i in r.message_ids.to_pylist()]
    assert ids[2] == "mine"
    assert len(set(ids)) == 4 and None not in ids


def test_append_times_never_go_back_though_the_clock_does(open_log: OpenLog, clock: SetClock) -> None:
    log = open_log()
    log.append([batch(b"a")])
    clock.set_wall_us(clock.wall_us() - 3_600_000_000)
    log.append([batch(b"b")])
    clock.set_wall_us(clock.wall_us() + 7_200_000_000)
    log.append([batch(b"c")])
    times = all_rows(log).column("append_time").cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert times[0] == times[1] < times[2]


def test_an_expected_offset_that_is_the_end_is_stored(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"a")], expected_offset=0)
    assert places(log.append([batch(b"b")], expected_offset=1)) == [(1, 1, False)]


def test_meta_4_an_expected_offset_that_is_not_the_end_stores_nothing(open_log: OpenLog) -> None:
    one, two = open_log(), open_log()
    one.append([batch(b"a")], expected_offset=0)
    with pytest.raises(OffsetMismatch) as refused:
        two.append([batch(b"b")], expected_offset=0)
    assert refused.value.extra == {"end_offset": 1}
    assert all_bodies(two) == [b"a"]


def test_meta_4_a_repeated_request_is_no_mismatch(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"a", producer="p", seq=1)], expected_offset=0)
    assert places(log.append([batch(b"a", producer="p", seq=1)], expected_offset=0)) == [(0, 1, True)]


def test_an_append_says_whether_it_is_durable(open_log: OpenLog) -> None:
    log = open_log()
    assert log.append([batch(b"a")])[0].durable
    assert not log.append([batch(b"b")], flush=Flush.ASYNC)[0].durable


def test_offsets_that_are_used_up_are_refused(open_log: OpenLog) -> None:
    log = open_log(bounds=LogBounds(offset_max=2))
    assert LogBounds().offset_max == OFFSET_MAX > 2
    log.append([batch(b"a")])
    log.append([batch(b"b")])
    with pytest.raises(Unavailable, match="used up"):
        log.append([batch(b"c")])


# SEND-5: repeated requests.


def test_send_05_a_replay_is_stored_once_and_gets_its_offsets(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"z")])
    log.append([batch(b"a", b"b", producer="p", seq=1)])
    log.append([batch(b"y")])
    assert places(log.append([batch(b"a", b"b", producer="p", seq=1)])) == [(1, 2, True)]
    assert all_bodies(log) == [b"z", b"a", b"b", b"y"]


def test_send_05_a_replay_has_no_ids_and_makes_no_commit(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"a", producer="p", seq=1)])
    version = log.version
    again = log.append([batch(b"a", producer="p", seq=1)])[0]
    assert (again.message_ids.to_pylist(), again.version, log.version) == ([], version, version)


def test_send_05_a_replay_within_one_append_is_stored_once(open_log: OpenLog) -> None:
    log = open_log()
    results = log.append([batch(b"a", producer="p", seq=1), batch(b"b"), batch(b"a", producer="p", seq=1), batch(b"c")])
    assert places(results) == [(0, 1, False), (1, 1, False), (0, 1, True), (2, 1, False)]
    assert all_bodies(log) == [b"a", b"b", b"c"]


def test_send_05_a_replay_within_a_long_append_gets_the_offsets_that_were_stored(open_log: OpenLog) -> None:
    """More requests of one producer in one commit than its window keeps: the window cannot tell, the append can."""
    log = open_log()
    count = PRODUCER_REQUESTS_KEPT + 4
    sent = [batch(str(i).encode(), producer="p", seq=i) for i in range(count)]
    results = log.append([*sent, sent[0], batch(b"last")])
    assert places(results)[-2:] == [(0, 1, True), (count, 1, False)]
    assert all_bodies(log) == [*(str(i).encode() for i in range(count)), b"last"]


def test_send_05_fresh_requests_beside_a_replay_are_stored(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"a", producer="p", seq=1)])
    results = log.append([batch(b"a", producer="p", seq=1), batch(b"b", producer="p", seq=2), batch(b"c")])
    assert places(results) == [(0, 1, True), (1, 1, False), (2, 1, False)]
    assert [r.message_ids.to_pylist() == [] for r in results] == [True, False, False]
    assert all_bodies(log) == [b"a", b"b", b"c"]


def test_send_05_a_replay_at_another_process_is_stored_once(open_log: OpenLog) -> None:
    one, two = open_log(), open_log()
    one.append([batch(b"a", producer="p", seq=1)])
    assert places(two.append([batch(b"a", producer="p", seq=1)])) == [(0, 1, True)]


def test_send_05_two_producers_may_use_the_same_sequence(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"a", producer="p", seq=1)])
    assert places(log.append([batch(b"b", producer="q", seq=1)])) == [(1, 1, False)]


def test_send_05_producers_are_remembered_after_reopening_and_rolling_up(open_log: OpenLog) -> None:
    log = open_log(rollup_files=4, checkpoint_commits=4)
    for i in range(10):
        log.append([batch(str(i).encode(), producer="p", seq=i)])
        log.maintain()
    assert len(log.files) < 10
    again = open_log()
    seen = again.known_producer("p")
    assert seen is not None
    assert (seen.last_seq, sorted(seen.parts)) == (9, list(range(10)))
    assert [places(again.append([batch(b"?", producer="p", seq=i)]))[0] for i in range(10)] == [
        (i, 1, True) for i in range(10)
    ]


def test_send_05_producers_are_remembered_when_two_processes_roll_up_in_turn(open_log: OpenLog) -> None:
    """The second one rolls up a file that the first one made; the requests are in its footer, not in its commit."""
    logs = [open_log(rollup_files=3, cache_bytes_max=1) for _ in range(2)]
    for i in range(12):
        logs[0].append([batch(str(i).encode(), producer=f"p{i}", seq=0)])
        logs[i // 3 % 2].refresh()
        logs[i // 3 % 2].maintain()
    assert max(f.count for f in open_log().files) >= 9, "a roll-up of roll-ups"
    again = open_log()
    assert [places(again.append([batch(b"?", producer=f"p{i}", seq=0)]))[0] for i in range(12)] == [
        (i, 1, True) for i in range(12)
    ]


def test_send_05_positions_in_a_spread_request_are_remembered(open_log: OpenLog) -> None:
    log = open_log()
    log.append([Batch(rows([b"a", b"b"]), ProducerStamp("p", 1, (3, 7), 10))])
    for seen in (log.known_producer("p"), open_log().known_producer("p")):
        assert seen is not None
        (part,) = seen.parts[1]
        assert (part.base_offset, part.count, part.indexes, part.total) == (0, 2, (3, 7), 10)


@pytest.mark.parametrize("together", [True, False])
def test_send_05_two_parts_of_a_request_may_come_to_one_partition(open_log: OpenLog, together: bool) -> None:
    """The second was meant for another partition, which gave its keys up meanwhile."""
    log = open_log(rollup_files=2)
    one = Batch(rows([b"a", b"b"]), ProducerStamp("p", 1, (3, 7), 10))
    two = Batch(rows([b"c", b"d"]), ProducerStamp("p", 1, (4, 5), 10))
    for batches in [[one, two]] if together else [[one], [two]]:
        assert not any(part.duplicate for part in log.append(batches))
    log.append([batch(b"e")])
    while log.maintain():
        pass
    for found in (log, open_log()):
        assert places(found.append([two, one, two])) == [(2, 2, True), (0, 2, True), (2, 2, True)]
        seen = found.known_producer("p")
        assert seen is not None
        assert [(part.base_offset, part.indexes) for part in seen.parts[1]] == [(0, (3, 7)), (2, (4, 5))]
        assert all_bodies(found) == [b"a", b"b", b"c", b"d", b"e"]
    overlapping = Batch(rows([b"x", b"y"]), ProducerStamp("p", 1, (7, 8), 10))
    assert places(log.append([overlapping])) == [(0, 2, True)], "a message is never stored twice"


def test_an_unknown_producer_is_unknown(open_log: OpenLog) -> None:
    assert open_log().known_producer("nobody") is None


# What an error leaves.


@pytest.mark.promise("DAMAGE-5")
@pytest.mark.parametrize("call", ["put", "put_if_absent"])
def test_a_full_disk_stores_nothing_and_the_next_append_goes_on(
    store: FaultyStore, open_log: OpenLog, call: str
) -> None:
    log = open_log(store)
    log.append([batch(b"a")])
    store.once("before", call, failing(StorageFull("no space left")))
    with pytest.raises(StorageFull):
        log.append([batch(b"b")])
    assert places(log.append([batch(b"c")])) == [(1, 1, False)]
    assert all_bodies(log) == [b"a", b"c"]


def test_rely_5_data_files_of_failed_appends_are_not_deleted(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store)
    store.once("before", "put_if_absent", failing(StorageFull("no space left")))
    with pytest.raises(StorageFull):
        log.append([batch(b"b")])
    assert store.keys("delete") == [k for k in store.keys("delete") if k.startswith(".mq-probe")]


# Making and finding partitions.


def test_making_a_partition_twice_is_once(open_log: OpenLog) -> None:
    one, two = open_log(), open_log()
    assert one.table_id == two.table_id


def test_a_partition_that_was_not_made_is_not_found(files: MemoryStore, clock: SetClock) -> None:
    warehouse = Warehouse.open("", store=files, clock=clock)
    with pytest.raises(PartitionNotFound):
        warehouse.open_partition(REF)


def test_rely_4_a_table_whose_log_is_gone_is_not_made_anew(files: MemoryStore, open_log: OpenLog) -> None:
    """Made again, it would number from 0 again."""
    from deltamq.mq.errors import Corrupt

    open_log().append([batch(b"a")])
    files.delete_tree(f"{REF.folder}/_delta_log")
    with pytest.raises(Corrupt, match="no log"):
        open_log()


def test_rely_4_a_log_of_another_partition_is_not_believed(files: MemoryStore, open_log: OpenLog) -> None:
    from deltamq.mq.errors import Corrupt
    from deltamq.tables.paths import PartitionRef, Space

    open_log().append([batch(b"a")])
    other = PartitionRef(Space.TOPICS, "orders", "orders#1@broker-a")
    for folder in ("", "/_delta_log"):
        for entry in files.entries(f"{REF.folder}{folder}"):
            files.put(
                f"{other.folder}{folder}/{entry.name}", files.read(f"{REF.folder}{folder}/{entry.name}"), durable=True
            )
    with pytest.raises(Corrupt, match="files were moved"):
        Warehouse.open("", store=files).open_partition(other)


def test_stats_tell_what_is_stored(open_log: OpenLog, clock: SetClock) -> None:
    log = open_log()
    empty = log.stats()
    assert (empty.messages, empty.files, empty.bytes, empty.last_append_time_us) == (0, 0, 0, None)
    log.append([batch(*numbered_bodies("a", 5))])
    for found in (log.stats(), open_log().stats()):
        assert (found.min_offset, found.max_offset, found.messages, found.files) == (0, 5, 5, 1)
        assert found.bytes == log.files[0].size
        assert found.last_append_time_us == clock.wall_us()
        assert found.version == 1


def test_a_look_for_a_producer_waits_for_no_commit(open_log: OpenLog, store: FaultyStore) -> None:
    """The service looks on its event loop, for each request, while others are being stored."""
    log = open_log(store)
    log.append([batch(b"a", producer="p", seq=4)])
    committing, go_on = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        committing.set()
        assert go_on.wait(30)

    store.once("before", "put", slow)
    appending = threading.Thread(target=log.append, args=([batch(b"b", producer="p", seq=5)],))
    appending.start()
    assert committing.wait(30)
    seen = log.known_producer("p")
    go_on.set()
    appending.join()
    assert seen is not None and seen.last_seq == 4
    after = log.known_producer("p")
    assert after is not None and after.last_seq == 5
