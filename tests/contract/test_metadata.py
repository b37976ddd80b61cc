"""The metadata log on real tables: compare-and-set, rebuilding, crashes (SPEC META-2 to META-4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.mq.errors import Conflict, Corrupt, NotFound, Unavailable
from deltamq.mq.meta.brokers import META_ROLE, Host, check_role, decide_register, decide_renew
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.group import GroupEvent, decide_put_group, decide_reset_offsets
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.moved_keys import moves_of
from deltamq.mq.meta.online import Subscription, TopicPartitions, decide_heartbeat
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Event, MetaState, TopicDeleted, decide_delete_topic, decide_put_topic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.tables import failpoints
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.bounds import LogBounds
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import META_PARTITION, MetaLog
from tests.contract.metadata import AB, ForgetfulStore, Open, delete, killed, race


def put(name: str, id: str = "id-1", partitions: int | None = None) -> Callable[[MetaState], tuple[Event, ...]]:
    request = TopicRequest(partitions=partitions)
    return lambda state: decide_put_topic(state, name, request, AB, id, 1_000)


@pytest.fixture
def open_meta(warehouses: Callable[[], Warehouse]) -> Open:
    return lambda: MetaLog(warehouses())


def test_a_new_warehouse_has_no_topics(open_meta: Open) -> None:
    assert open_meta().state == MetaState()


def test_meta_3_the_state_is_rebuilt_from_the_table_alone(open_meta: Open) -> None:
    meta = open_meta()
    meta.submit(put("orders"))
    meta.submit(put("refunds", "id-2", partitions=1024))
    meta.submit(put("orders", partitions=8))
    meta.submit(delete("refunds"))
    state = meta.submit(put("refunds", "id-3"))
    assert open_meta().state == state == meta.state
    assert (state.topic("orders").id, state.topic("refunds").id) == ("id-1", "id-3")


def test_meta_4_every_family_of_events_is_rebuilt_from_the_one_log(open_meta: Open) -> None:
    meta = open_meta()
    strict = TopicRequest(partitions=2, order_strategy="strict")
    meta.submit(lambda state: decide_put_topic(state, "orders", strict, AB, "id-1", 1_000))
    meta.submit_any(
        lambda state: decide_register(state.brokers, Host(id="h1", address="h:1", brokers=AB, renewal=0, load=0))
    )
    meta.submit_any(lambda state: decide_renew(state.brokers, "h1", 7))

    def beat(state: Meta) -> Sequence[AnyEvent]:
        check_role(state.brokers, META_ROLE, "h1", state.brokers.roles[META_ROLE].epoch)
        route = state.topics.topic("orders").route
        return decide_heartbeat(
            state.online,
            "billing",
            "c1",
            subscriptions={"orders": Subscription(order=True, tags="*")},
            online=True,
            topics={"orders": TopicPartitions("id-1", route.partitions)},
            strategy="sticky",
            now_ms=5,
        )

    def expand(state: Meta) -> Sequence[AnyEvent]:
        events = decide_put_topic(state.topics, "orders", TopicRequest(partitions=4), AB, "id-2", 2_000)
        return (*events, *moves_of(state.topics, events))

    meta.submit_any(beat)
    found = meta.submit_any(expand)
    assert found.brokers.hosts["h1"].load == 7 and found.brokers.available == AB
    assert found.online.group("billing").allocation("c1") == {"orders": ("orders@broker-a", "orders@broker-b")}
    assert {move.target for move in found.moved_keys("id-1").moves} == {"orders#1@broker-a", "orders#2@broker-b"}
    assert open_meta().meta == found
    assert meta.submit_any(lambda state: decide_delete_topic(state.topics, "orders")).moved == {}


def test_renewals_of_leases_move_nothing_that_is_told(open_meta: Open) -> None:
    meta = open_meta()
    meta.submit_any(
        lambda state: decide_register(state.brokers, Host(id="h1", address="h:1", brokers=AB, renewal=0, load=0))
    )
    told = meta.known()
    meta.submit_any(lambda state: decide_renew(state.brokers, "h1", 0))
    again = open_meta().known()
    assert told[0] == meta.known()[0] == again[0] and again[1].brokers.hosts["h1"].renewal == 1


def test_meta_3_a_long_log_is_read_in_pages(warehouses: Callable[..., Warehouse]) -> None:
    meta, reader = MetaLog(warehouses()), MetaLog(warehouses(LogBounds(page_messages=5)))
    for number in range(12):
        meta.submit(put(f"t{number}", f"id-{number}"))
    assert reader.refresh()
    assert reader.state == meta.state


def test_meta_4_refresh_shows_what_others_wrote_and_only_that(open_meta: Open) -> None:
    one, other = open_meta(), open_meta()
    one.submit(put("orders"))
    assert other.state.topics == {}
    assert other.refresh() is True
    assert other.state == one.state
    before = other.state
    assert other.refresh() is False
    assert other.state is before


def test_meta_4_a_decision_sees_what_others_wrote_before_it(open_meta: Open) -> None:
    one, other = open_meta(), open_meta()
    one.submit(put("orders"))
    with pytest.raises(Conflict):
        other.submit(put("ORDERS", "id-2"))
    other.submit(delete("orders"))
    with pytest.raises(NotFound):
        one.submit(delete("orders"))


def test_a_decision_without_events_writes_nothing(open_meta: Open, warehouses: Callable[[], Warehouse]) -> None:
    meta = open_meta()
    state = meta.submit(put("orders"))
    assert meta.submit(put("orders", "id-2")) is state
    assert warehouses().open_partition(META_PARTITION).end_offset == 1


def test_a_refused_decision_writes_nothing(open_meta: Open) -> None:
    meta = open_meta()
    with pytest.raises(NotFound):
        meta.submit(delete("orders"))
    assert open_meta().state == MetaState()


def test_events_that_cannot_be_folded_are_never_stored(open_meta: Open) -> None:
    meta = open_meta()
    with pytest.raises(Corrupt):
        meta.submit(lambda _: [TopicDeleted(name="orders", id="id-1", epoch=1)])
    assert open_meta().state == MetaState()


def test_meta_4_the_loser_of_a_race_decides_again(open_meta: Open) -> None:
    one, other = open_meta(), open_meta()
    seen: list[int] = []

    def decide(state: MetaState) -> tuple[Event, ...]:
        seen.append(len(state.topics))
        if len(seen) == 1:
            other.submit(put("orders"))
        return put("refunds", "id-2")(state)

    state = one.submit(decide)
    assert seen == [0, 1]
    assert {name: topic.route.epoch for name, topic in state.topics.items()} == {"orders": 1, "refunds": 2}
    assert open_meta().state == state


def test_losing_every_race_ends_in_unavailable(open_meta: Open, warehouses: Callable[..., Warehouse]) -> None:
    one, other = MetaLog(warehouses(), races_max=3), open_meta()

    def decide(state: MetaState) -> tuple[Event, ...]:
        other.submit(put(f"t{len(state.topics)}", f"id-{len(state.topics)}"))
        return put("orders", "mine")(state)

    with pytest.raises(Unavailable) as refused:
        one.submit(decide)
    assert refused.value.code == "contention"
    assert open_meta().state.topics.keys() == {"t0", "t1", "t2"}, "it has tried as often as it may"


@pytest.mark.promise("HOST-8")
def test_meta_2_racing_processes_never_lose_an_event(open_meta: Open) -> None:
    writers, each = 4, 6
    metas: list[MetaLog] = []

    def write(writer: int) -> None:
        meta = open_meta()
        metas.append(meta)
        for number in range(each):
            meta.submit(put(f"t-{writer}-{number}", f"id-{writer}-{number}"))
            # All writers expand one topic, too: what one has done must not be undone by another.
            meta.submit(lambda state: put("shared", "shared", _more(state))(state))

    race(write, writers)
    assert len(metas) == writers
    for meta in metas:
        meta.refresh()
    rebuilt = open_meta().state
    assert all(meta.state == rebuilt for meta in metas)
    assert len(rebuilt.topics) == writers * each + 1
    assert len(rebuilt.topic("shared").route.partitions) == writers * each
    assert rebuilt.routes_epoch == 2 * writers * each


def _more(state: MetaState) -> int:
    shared = state.topics.get("shared")
    return len(shared.route.partitions) + 1 if shared else 1


def test_an_append_without_an_answer_is_applied_once_and_is_no_failure() -> None:
    store = ForgetfulStore()
    meta = MetaLog(Warehouse.open("", store=store))
    for decide in (put("orders"), delete("orders")):
        # The put, and all three times that the log looks for what became of it.
        store.lost = 4
        state = meta.submit(decide)
        assert store.lost == 0
    assert "orders" not in state.topics
    again = Warehouse.open("", store=store)
    assert MetaLog(again).state == state
    assert again.open_partition(META_PARTITION).end_offset == 2


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"topic":{}}', b"\xff"])
def test_a_damaged_event_stops_the_log_and_names_its_offset(
    open_meta: Open, warehouses: Callable[[], Warehouse], damage: bytes
) -> None:
    meta = open_meta()
    state = meta.submit(put("orders"))
    row = pa.RecordBatch.from_pydict({"tag": ["topic_put"], "body": pa.array([damage], pa.binary())})
    warehouses().open_partition(META_PARTITION).append([Batch(row, None)])
    with pytest.raises(Corrupt, match="offset 1") as corrupt:
        meta.refresh()
    assert corrupt.value.code == "meta_event_corrupt"
    assert meta.state is state
    with pytest.raises(Corrupt):
        open_meta()


def test_an_event_of_a_newer_release_stops_the_log(open_meta: Open, warehouses: Callable[[], Warehouse]) -> None:
    meta = open_meta()
    row = pa.RecordBatch.from_pydict({"tag": ["topic_frozen"], "body": pa.array([b"{}"], pa.binary())})
    warehouses().open_partition(META_PARTITION).append([Batch(row, None)])
    with pytest.raises(Corrupt) as corrupt:
        meta.submit(put("orders"))
    assert corrupt.value.code == "meta_event_unknown"


def killed_in_submit(uri: str, failpoint: str) -> None:
    """Submit an event; the process is killed at its first pass of the failpoint while it submits a second one."""
    meta = MetaLog(Warehouse.open(uri))
    meta.submit(put("first", "id-0"))
    failpoints.arm(f"{failpoint}=kill")
    meta.submit(put("orders"))


def killed_in_create(uri: str, failpoint: str) -> None:
    """Make the log; the process is killed at its first pass of the failpoint after the warehouse was opened."""
    warehouse = Warehouse.open(uri)
    failpoints.arm(f"{failpoint}=kill")
    MetaLog(warehouse).submit(put("first", "id-0"))


@pytest.mark.promise("HOST-8")
@pytest.mark.parametrize(
    ("failpoint", "stored"),
    [
        ("commit.after_data_write", False),
        ("commit.after_log_fsync", False),
        ("commit.after_link", True),
        ("commit.after_dir_fsync", True),
    ],
)
def test_meta_4_a_process_killed_in_submit_leaves_the_event_once_or_not_at_all(
    tmp_path: Path, failpoint: str, stored: bool
) -> None:
    killed(killed_in_submit, str(tmp_path), failpoint)
    warehouse = Warehouse.open(str(tmp_path))
    meta = MetaLog(warehouse)
    assert sorted(meta.state.topics) == (["first", "orders"] if stored else ["first"])
    state = meta.submit(put("orders"))
    assert state.topic("orders").id == "id-1"
    assert warehouse.open_partition(META_PARTITION).end_offset == 2
    warehouse.close()


@pytest.mark.parametrize("failpoint", ["commit.before_log_tmp", "commit.after_log_fsync", "commit.after_link"])
def test_meta_3_a_process_killed_while_it_makes_the_log_does_not_stop_the_next(tmp_path: Path, failpoint: str) -> None:
    killed(killed_in_create, str(tmp_path), failpoint)
    warehouse = Warehouse.open(str(tmp_path))
    assert list(MetaLog(warehouse).submit(put("orders")).topics) == ["orders"]
    warehouse.close()


def test_the_log_is_readable_by_its_messages(open_meta: Open, warehouses: Callable[[], Warehouse]) -> None:
    """META-4: everything fits SQL: key, tag and a JSON body tell what happened."""
    meta = open_meta()
    meta.submit(put("orders"))
    meta.submit(delete("orders"))
    rows = warehouses().open_partition(META_PARTITION).read(0, max_messages=10, max_bytes=1 << 20).rows
    assert rows.column("key").to_pylist() == ["topic/orders", "topic/orders"]
    assert rows.column("tag").to_pylist() == ["topic_put", "topic_deleted"]
    bodies = [json.loads(body) for body in rows.column("body").to_pylist()]
    assert bodies[0]["topic"]["route"]["partitions"] == ["orders@broker-a", "orders@broker-b"]
    assert bodies[1] == {"name": "orders", "id": "id-1", "epoch": 2}


# Groups.


def put_group(name: str, **settings: object) -> Callable[[Meta], Sequence[GroupEvent]]:
    return lambda meta: decide_put_group(meta.groups, name, GroupRequest.from_json(settings), 1_000)


def test_meta_3_groups_are_rebuilt_with_the_topics(open_meta: Open) -> None:
    meta = open_meta()
    meta.submit(put("orders", "id-1"))
    meta.submit_groups(put_group("billing", max_attempts=3))
    lane = LaneKey("id-1", "billing", False, "orders@a")
    meta.submit_groups(lambda now: decide_reset_offsets(now.groups, "billing", "orders", {lane: 7}))
    assert open_meta().meta == meta.meta
    assert meta.groups.group("billing").settings.max_attempts == 3
    assert meta.groups.epoch_of(lane) == 2


def test_pop_12_the_end_of_a_topic_ends_the_resets_in_it(open_meta: Open) -> None:
    meta, other = open_meta(), open_meta()
    meta.submit(put("orders", "id-1"))
    meta.submit_groups(put_group("billing"))
    lane = LaneKey("id-1", "billing", False, "orders@a")
    meta.submit_groups(lambda now: decide_reset_offsets(now.groups, "billing", "orders", {lane: 7}))
    meta.submit(lambda state: decide_delete_topic(state, "orders"))
    assert meta.groups.resets == {}
    other.refresh()
    assert other.meta == meta.meta


def test_meta_4_a_group_is_decided_by_the_newest_state(open_meta: Open) -> None:
    one, other = open_meta(), open_meta()
    one.submit_groups(put_group("billing", max_attempts=3))
    other.submit_groups(put_group("billing", invisible_ms=20_000))
    settings = other.groups.group("billing").settings
    assert (settings.max_attempts, settings.invisible_ms) == (3, 20_000)
