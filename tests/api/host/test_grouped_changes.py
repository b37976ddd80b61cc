"""Changes of the metadata that wait together share an append, and tables are made many at once (SPEC META-7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Unavailable, Unknown
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_delete_topic
from deltamq.tables.store.store import MemoryStore
from tests.api.running import Api, config_for, running, until
from tests.faulty_store import FaultyStore

_DEFAULT = TopicRequest()
#: Seconds that a write and a read take, a tenth of an object store's.
_WRITE_S, _READ_S = 0.005, 0.002


@pytest.fixture
def store() -> FaultyStore:
    """A store as far away as an object store."""
    far = FaultyStore(MemoryStore(), cheap_look=False)
    for name in ("put", "put_if_absent"):
        far.before[name] = lambda _: time.sleep(_WRITE_S)
    for name in ("read", "read_parts", "names", "entries", "exists"):
        far.before[name] = lambda _: time.sleep(_READ_S)
    return far


@pytest.fixture
def api(store: FaultyStore) -> Iterator[Api]:
    with running(config_for("memory"), Ports(store=store)) as started:
        yield started


def together(api: Api, *work: Callable[[], Awaitable[Any]]) -> list[Any]:
    """What becomes of calls that begin in one turn of the service's loop."""

    async def gathered() -> list[Any]:
        return await asyncio.gather(*(one() for one in work), return_exceptions=True)

    return asyncio.run_coroutine_threadsafe(gathered(), api.service.loop).result(60)


def putting(api: Api, name: str, request: TopicRequest = _DEFAULT) -> Callable[[], Awaitable[Any]]:
    return lambda: api.service.topics.put(name, request, permit=lambda _: None)


def appends(store: FaultyStore) -> list[str]:
    """The commits of the metadata log that were tried since the calls were cleared."""
    return [key for key in store.keys("put_if_absent") if key.startswith("sys/meta/")]


def test_meta_07_fifty_creations_that_wait_together_are_one_append(api: Api, store: FaultyStore) -> None:
    names = [f"t{number}" for number in range(50)]
    store.calls.clear()
    made = together(api, *(putting(api, name) for name in names))
    assert [(hosted.name, created) for hosted, created in made] == [(name, True) for name in names]
    assert len(appends(store)) == 1
    of_tables = [key for _, key in store.calls if key.startswith("topics/")]
    assert len(of_tables) <= 5 * 2 * len(names), "five calls for each table"
    for name in names:
        assert [p["state"] for p in api.partitions(name).values()] == ["serving", "serving"]
    store.calls.clear()
    deleted = together(api, *((lambda name=name: api.service.delete_topic(name)) for name in names))
    assert deleted == [None] * 50 and len(appends(store)) == 1
    assert api.call("GET", "/v1/topics").json["topics"] == []


def test_meta_07_each_is_decided_after_the_ones_before_it(api: Api, store: FaultyStore) -> None:
    store.calls.clear()
    first, second, upper, grown, less = together(
        api,
        putting(api, "orders"),
        putting(api, "orders"),
        putting(api, "ORDERS"),
        putting(api, "orders", TopicRequest(partitions=4)),
        putting(api, "orders", TopicRequest(partitions=1)),
    )
    assert (first[1], second[1], grown[1]) == (True, False, False)
    assert first[0].topic.id == second[0].topic.id
    assert isinstance(upper, Conflict) and isinstance(less, DeltaMQError), "refused, and it holds up no other"
    assert len(api.partitions("orders")) == 4
    gone, again, missing = together(
        api,
        lambda: api.service.meta.submit(lambda state: decide_delete_topic(state, "orders")),
        putting(api, "orders"),
        lambda: api.service.meta.submit(lambda state: decide_delete_topic(state, "payments")),
    )
    assert "orders" not in gone.topics and again[1] and isinstance(missing, NotFound)
    assert api.call("GET", "/v1/topics/orders").json["id"] == again[0].topic.id != first[0].topic.id


def test_meta_07_what_another_process_wrote_meanwhile_is_decided_on(api: Api, store: FaultyStore) -> None:
    """The append is tried on what is known; if that is too old, all are decided once more."""
    with running(config_for("memory", brokers=("broker-c",)), Ports(store=store)) as other:
        other.put_topic("orders")
        taken, fresh = together(api, putting(api, "ORDERS"), putting(api, "payments"))
        assert isinstance(taken, Conflict) and fresh[1]
        assert other.call("GET", "/v1/topics/payments").status == 200, "an unknown name is looked for at once"


def test_meta_07_all_learn_that_an_outcome_is_unknown_and_the_next_is_tried(api: Api, store: FaultyStore) -> None:
    def lost(key: str) -> None:
        if key.startswith("sys/meta/"):
            raise Unknown

    def unread(key: str) -> None:
        if key.startswith("sys/meta/"):
            raise Unavailable("no answer")

    slow = dict(store.before)

    def met() -> list[type]:
        until(lambda: api.call("PUT", "/v1/topics/c", {"partitions": 1}).status in (200, 201))
        store.before |= {"put_if_absent": lost, "read": unread}
        results = together(api, putting(api, "a"), putting(api, "b"))
        store.before.update(slow)
        return [type(one) for one in results]

    # A renewal of the service's own may meet the fault first: the metadata is unread then, and nothing is put.
    until(lambda: met() == [Unknown, Unknown])
    assert together(api, putting(api, "d"))[0][1]
    assert api.call("GET", "/v1/topics").json["topics"] == ["c", "d"]


def test_meta_07_a_caller_that_is_cancelled_takes_no_other_along(api: Api) -> None:
    meta = api.service.meta

    async def one_gives_up() -> Meta:
        def decide(name: str) -> Callable[[Meta], Sequence[AnyEvent]]:
            def put(state: Meta) -> Sequence[AnyEvent]:
                return decide_put_group(state.groups, name, GroupRequest(), 0)

            return put

        first = asyncio.create_task(meta.submit_any(decide("a")))
        second = asyncio.create_task(meta.submit_any(decide("b")))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    after = asyncio.run_coroutine_threadsafe(one_gives_up(), api.service.loop).result(60)
    assert after.groups.groups.keys() == {"a", "b"}


def test_meta_07_looks_that_wait_together_are_one(api: Api, store: FaultyStore) -> None:
    store.calls.clear()
    assert len(set(map(id, together(api, *([api.service.meta.refresh] * 50))))) == 1
    looks = [key for key in store.keys("read") if key.startswith("sys/meta/")]
    assert len(looks) <= 3, "one, and what the service looks at by itself meanwhile"
