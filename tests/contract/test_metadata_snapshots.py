"""The metadata log stays short: snapshots, what is let go before them, and processes that were away (SPEC META-3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.mq.errors import Corrupt, NotFound
from deltamq.mq.meta.brokers import Host, decide_register, decide_renew
from deltamq.mq.meta.features import KNOWN_FEATURES, decide_upgrade
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.snapshot import MetaSnapshot
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Event, MetaState, decide_put_topic
from deltamq.tables import failpoints
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import META_PARTITION, MetaLog, read_meta
from tests.contract.metadata import AB, ForgetfulStore, Open, delete, killed, race

EVERY = 10


@pytest.fixture
def open_meta(warehouses: Callable[[], Warehouse]) -> Open:
    return lambda: MetaLog(warehouses(), snapshot_events=EVERY)


@pytest.fixture
def log(warehouses: Callable[[], Warehouse]) -> Callable[[], PartitionLog]:
    """The partition as it is now."""
    return lambda: warehouses().open_partition(META_PARTITION)


def put(name: str, partitions: int = 2) -> Callable[[MetaState], tuple[Event, ...]]:
    request = TopicRequest(partitions=partitions)
    return lambda state: decide_put_topic(state, name, request, AB, f"id-{name}", 1_000)


def register(meta: MetaLog, id: str = "h1") -> None:
    meta.submit_any(
        lambda state: decide_register(
            state.brokers, Host(id=id, address=f"http://{id}:1", brokers=AB, renewal=0, load=0)
        )
    )


def renew(meta: MetaLog, times: int, *, maintain: bool = True, id: str = "h1") -> None:
    def decide(state: Meta) -> Sequence[AnyEvent]:
        return decide_renew(state.brokers, id, 0)

    for _ in range(times):
        meta.submit_any(decide)
        if maintain:
            meta.maintain()


def tags(log: PartitionLog) -> list[str]:
    rows = log.read(log.min_offset, max_messages=10_000, max_bytes=1 << 24).rows
    found: list[str] = rows.column("tag").to_pylist()
    return found


def test_meta_3_a_start_reads_the_last_snapshot_and_what_follows(
    open_meta: Open, log: Callable[[], PartitionLog]
) -> None:
    meta = open_meta()
    meta.submit(put("orders"))
    register(meta)
    renew(meta, 12 * EVERY)
    found = log()
    assert found.min_offset > 0, "the topic's event is gone"
    assert "topic_put" not in tags(found)
    again = open_meta()
    assert again.meta == meta.meta and list(again.state.topics) == ["orders"]
    assert again.known() == meta.known()


@pytest.mark.promise("HOST-11")
def test_meta_3_the_log_stays_short_however_many_leases_are_renewed(
    open_meta: Open, log: Callable[[], PartitionLog]
) -> None:
    meta = open_meta()
    register(meta)
    lengths = []
    for _ in range(4):
        renew(meta, 4 * EVERY)
        lengths.append((found := log()).end_offset - found.min_offset)
    # Whole files go, and a roll-up makes one of 32 commits.
    assert max(lengths) <= 2 * EVERY + 2 * 32
    assert log().end_offset > 4 * 4 * EVERY


def test_a_snapshot_is_in_the_commit_of_the_event_that_made_it_due(
    open_meta: Open, log: Callable[[], PartitionLog]
) -> None:
    meta = open_meta()
    register(meta)
    renew(meta, 2 * EVERY, maintain=False)
    found = tags(log())
    places = [at for at, tag in enumerate(found) if tag == "snapshot"]
    assert places[0] == EVERY and all(other - one == EVERY for one, other in pairwise(places))
    stored = log().files
    assert {file.start + file.count - 1 for file in stored if file.count == 2} == set(places)


def test_meta_05_features_that_are_on_follow_each_snapshot_as_events(
    open_meta: Open, log: Callable[[], PartitionLog]
) -> None:
    """Releases before features pass over the parts of a snapshot that they do not know, and stop at such an event."""
    meta = open_meta()
    register(meta)
    meta.submit_any(lambda state: decide_upgrade(state.features, {}))
    renew(meta, 3 * EVERY)
    found = tags(log())
    places = [at for at, tag in enumerate(found) if tag == "snapshot"]
    assert len(places) >= 2 and {found[at + 1] for at in places} == {"feature_on"}
    assert open_meta().meta == meta.meta and set(meta.meta.features.on) == set(KNOWN_FEATURES)


def test_the_events_between_the_last_two_snapshots_stay(open_meta: Open, log: Callable[[], PartitionLog]) -> None:
    meta = open_meta()
    register(meta)
    renew(meta, 15 * EVERY)
    assert tags(log()).count("snapshot") >= 2


@pytest.mark.promise("HOST-9")
def test_meta_3_a_process_that_slept_while_others_let_go_what_it_had_not_read(
    open_meta: Open, log: Callable[[], PartitionLog]
) -> None:
    awake, slept = open_meta(), open_meta()
    awake.submit(put("orders"))
    slept.refresh()
    register(awake)
    awake.submit(put("refunds"))
    awake.submit(delete("orders"))
    renew(awake, 12 * EVERY)
    assert log().min_offset > 1, "what the sleeper knows is gone"
    assert slept.refresh() is True
    assert slept.meta == awake.meta and slept.known() == awake.known()
    with pytest.raises(NotFound):
        slept.submit(delete("orders"))


def test_meta_3_a_process_that_slept_decides_by_the_newest_state(
    open_meta: Open, log: Callable[[], PartitionLog]
) -> None:
    awake, slept = open_meta(), open_meta()
    slept.submit(put("orders"))
    register(awake)
    renew(awake, 12 * EVERY)
    assert log().min_offset > 1
    state = slept.submit(put("refunds"))
    assert sorted(state.topics) == ["orders", "refunds"] and state.topic("refunds").route.epoch == 2
    renew(slept, 1)
    awake.refresh()
    assert slept.meta == awake.meta == open_meta().meta


def test_who_reads_on_past_a_snapshot_has_the_same_state(open_meta: Open) -> None:
    one, other = open_meta(), open_meta()
    register(one)
    for number in range(3 * EVERY):
        one.submit(put(f"t{number}"))
        renew(one, 1, maintain=False)
        if number % 7 == 0:
            other.refresh()
            assert other.meta == one.meta and other.known() == one.known()


def test_a_snapshot_leaves_what_it_does_not_change(open_meta: Open) -> None:
    """Those who follow the metadata compare by identity: nobody wakes up for a snapshot."""
    writer, reader = open_meta(), open_meta()
    writer.submit(put("orders"))
    register(writer)
    reader.refresh()
    before = {meta: meta.meta for meta in (writer, reader)}
    renew(writer, 2 * EVERY, maintain=False)
    reader.refresh()
    for meta, known in before.items():
        now = meta.meta
        assert now.brokers != known.brokers
        assert (now.topics, now.groups, now.online) == (known.topics, known.groups, known.online)
        assert now.topics is known.topics and now.groups is known.groups and now.online is known.online


def test_renewals_and_snapshots_move_nothing_that_is_told(open_meta: Open) -> None:
    meta = open_meta()
    register(meta)
    told = meta.known()[0]
    renew(meta, 15 * EVERY)
    assert meta.known()[0] == open_meta().known()[0] == told


def test_a_process_that_ends_before_it_let_go_leaves_that_to_the_next(
    open_meta: Open, log: Callable[[], PartitionLog]
) -> None:
    ended = open_meta()
    register(ended)
    renew(ended, 6 * EVERY, maintain=False)
    places = [at for at, tag in enumerate(tags(log())) if tag == "snapshot"]
    assert log().min_offset == 0
    assert open_meta().maintain() is True
    assert log().min_offset == places[-2] - 1, "the file of the last snapshot but one begins with an event"


def test_meta_2_racing_processes_make_snapshots_and_lose_no_event(
    open_meta: Open, log: Callable[[], PartitionLog]
) -> None:
    writers, each = 3, 2 * EVERY

    def write(writer: int) -> None:
        meta = open_meta()
        register(meta, f"h{writer}")
        for number in range(each):
            meta.submit(put(f"t-{writer}-{number}"))
            renew(meta, 1, id=f"h{writer}")

    race(write, writers)
    rebuilt = open_meta().meta
    assert len(rebuilt.topics.topics) == writers * each
    assert {host.renewal for host in rebuilt.brokers.hosts.values()} == {each}
    assert log().min_offset > 0


def test_a_snapshot_whose_append_is_not_answered_is_stored_once() -> None:
    store = ForgetfulStore()
    warehouse = Warehouse.open("", store=store)
    meta = MetaLog(warehouse, snapshot_events=EVERY)
    for number in range(EVERY - 1):
        meta.submit(put(f"t{number}"))
    # The put, and all three times that the log looks for what became of it.
    store.lost = 4
    meta.submit(put("last"))
    assert store.lost == 0
    assert tags(warehouse.open_partition(META_PARTITION))[-2:] == ["topic_put", "snapshot"]
    again = Warehouse.open("", store=store)
    assert MetaLog(again).meta == meta.meta
    assert again.open_partition(META_PARTITION).end_offset == EVERY + 1


def test_a_job_that_only_reads_sees_the_same(open_meta: Open, warehouses: Callable[[], Warehouse]) -> None:
    assert read_meta(warehouses().store) is None
    meta = open_meta()
    assert read_meta(warehouses().store) == Meta()
    meta.submit(put("orders"))
    register(meta)
    for _ in range(3):
        assert read_meta(warehouses().store) == meta.meta
        renew(meta, 5 * EVERY)
    assert read_meta(warehouses().store) == meta.meta


def test_a_log_without_its_beginning_and_without_a_snapshot_is_torn(
    open_meta: Open, warehouses: Callable[[], Warehouse], log: Callable[[], PartitionLog]
) -> None:
    meta = open_meta()
    for number in range(4):
        meta.submit(put(f"t{number}"))
    log().delete_below(2)
    with pytest.raises(Corrupt) as corrupt:
        open_meta()
    assert corrupt.value.code == "meta_log_torn"
    with pytest.raises(Corrupt):
        read_meta(warehouses().store)
    assert meta.refresh() is False, "a process that has read it does not read it again"


@pytest.mark.parametrize("damage", [b"{", b"[]", b"{}", b"\xff"])
def test_a_damaged_snapshot_stops_the_log_and_names_its_offset(
    open_meta: Open, log: Callable[[], PartitionLog], damage: bytes
) -> None:
    meta = open_meta()
    meta.submit(put("orders"))
    before = meta.meta
    row = pa.RecordBatch.from_pydict({"tag": [MetaSnapshot.kind], "body": pa.array([damage], pa.binary())})
    log().append([Batch(row, None)])
    for look in (meta.refresh, open_meta):
        with pytest.raises(Corrupt, match="offset 1") as corrupt:
            look()
        assert corrupt.value.code == "meta_event_corrupt"
    assert meta.meta is before


#: Behind the four events of a registration: the next one makes the fifth snapshot due, as each tenth row is one.
BEFORE = 41


def killed_at_a_snapshot(uri: str, failpoint: str) -> None:
    """Renew until the next event makes a snapshot due; the process is killed at its next pass of the failpoint."""
    meta = MetaLog(Warehouse.open(uri), snapshot_events=EVERY)
    register(meta)
    renew(meta, BEFORE, maintain=False)
    failpoints.arm(f"{failpoint}=kill")
    renew(meta, 1)


@pytest.mark.parametrize(
    ("failpoint", "renewed"),
    [
        ("commit.after_log_fsync", False),
        ("commit.after_link", True),
        ("retain.before_commit", True),
        ("retain.after_commit", True),
    ],
)
def test_meta_3_a_kill_around_a_snapshot_leaves_a_log_that_opens(tmp_path: Path, failpoint: str, renewed: bool) -> None:
    killed(killed_at_a_snapshot, str(tmp_path), failpoint)
    warehouse = Warehouse.open(str(tmp_path))
    meta = MetaLog(warehouse, snapshot_events=EVERY)
    assert meta.meta.brokers.hosts["h1"].renewal == BEFORE + renewed
    log = warehouse.open_partition(META_PARTITION)
    assert (tags(log)[-1] == "snapshot") is renewed, "both or neither"
    renew(meta, 1)
    found = tags(log)
    assert found.count("snapshot") >= 2, "the two that are needed"
    assert len(found) < 3 * EVERY, "what nobody needs is gone"
    assert read_meta(warehouse.store) == meta.meta
    warehouse.close()
