"""Very many topics: lists in pages, metrics that stay small, and partitions at rest that cost nothing.

The sizes and times of 3,000 topics are measured by `make bench ONLY=many`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.api.log.metrics import OTHER
from deltamq.api.ports import Ports
from deltamq.api.wire.fields import PAGE_MAX
from deltamq.mq.client.admin.admin import Admin
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from tests.api.running import Api, config_for, running, until
from tests.bench.rest.many import build, sizes

TOPICS = sizes(60)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service on 241 partitions of 60 topics."""
    folder = tmp_path_factory.mktemp("many") / "warehouse"
    warehouse = Warehouse.open(str(folder))
    build(warehouse, TOPICS)
    warehouse.close()
    with running(config_for(folder)) as api:
        yield api


def test_topics_are_listed_in_pages(many: Api) -> None:
    assert many.call("GET", "/v1/topics").json == {"topics": sorted(TOPICS)}, "all of them, as ever, without a limit"
    seen, after = list[str](), ""
    while True:
        page = many.call("GET", f"/v1/topics?limit=50{after}").json
        assert len(page["topics"]) <= 50
        seen += page["topics"]
        if "next" not in page:
            break
        after = f"&after={page['next']}"
    assert seen == sorted(TOPICS)


def test_a_page_goes_on_behind_a_topic_that_is_gone(many: Api) -> None:
    many.put_topic("topic-00005-brief", partitions=1)
    assert many.call("GET", "/v1/topics?limit=7").json["next"] == "topic-00005-brief"
    assert many.call("DELETE", "/v1/topics/topic-00005-brief").status == 204
    assert many.call("GET", "/v1/topics?limit=1&after=topic-00005-brief").json["topics"] == ["topic-00006"]


def test_groups_are_listed_in_pages(many: Api) -> None:
    for name in ("a", "b", "c"):
        assert many.call("PUT", f"/v1/groups/{name}").status == 201
    assert many.call("GET", "/v1/groups?limit=2").json == {"groups": ["a", "b"], "next": "b"}
    assert many.call("GET", "/v1/groups?limit=2&after=b").json == {"groups": ["c"]}


@pytest.mark.parametrize("limit", ["0", str(PAGE_MAX + 1), "few"])
def test_a_limit_out_of_bounds_is_refused(many: Api, limit: str) -> None:
    for path in ("/v1/topics", "/v1/groups"):
        reply = many.call("GET", f"{path}?limit={limit}")
        assert (reply.status, reply.json["field"]) == (400 if limit == "few" else 422, "limit")


def test_the_client_pages_through(many: Api) -> None:
    with Admin(f"http://127.0.0.1:{many.port}") as admin:
        assert admin.list_topics() == sorted(TOPICS)
        assert [name for name in admin.list_groups() if len(name) == 1] == ["a", "b", "c"]


def test_metrics_show_all_partitions_only_to_who_asks(many: Api) -> None:
    for topic in TOPICS:
        many.call("GET", f"/v1/topics/{topic}")
    assert many.call("GET", "/metrics").body.count(b"\ndeltamq_partition_bytes{") == many.service.settings.metrics_top
    one = many.call("GET", "/metrics?topic=topic-00000&topic=topic-00001").body.decode()
    ends = [line for line in one.splitlines() if line.startswith("deltamq_partition_end_offset{")]
    assert len(ends) == 9 and all(line.endswith(" 1.0") for line in ends), one
    assert "deltamq_commits" not in one, "what is of the process is left to the plain scrape"
    every = many.call("GET", "/metrics?partitions=true").body.decode()
    assert every.count("\ndeltamq_partition_end_offset{") >= sum(TOPICS.values())


def test_metrics_of_a_topic_that_is_not_there_are_refused(many: Api) -> None:
    assert many.call("GET", "/metrics?topic=nowhere").json["code"] == "topic_not_found"
    assert many.call("GET", "/metrics?partitions=perhaps").status == 400


def test_counters_of_many_topics_are_added_up(tmp_path: Path) -> None:
    """The first that were counted keep their series, so none of them ever goes back."""
    names = [f"topic-{number}" for number in (5, 2, 3, 1, 4, 0)]
    with running(config_for(tmp_path), Ports(series_max=3)) as api:

        def counted() -> dict[str, float]:
            lines = api.call("GET", "/metrics").body.decode().splitlines()
            shown = [line for line in lines if line.startswith("deltamq_produced_messages_total{")]
            return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in shown}

        for name in names:
            assert api.send(name, "a", "b").status == 200
        before = counted()
        assert [*before] == [*names[:3], OTHER] and before[OTHER] == 6
        api.send(names[5], "c")
        assert counted() == {**before, OTHER: 7}
        assert f'total{{topic="{names[5]}"}} 3.0' in api.call("GET", f"/metrics?topic={names[5]}").body.decode()


def test_a_partition_that_nobody_uses_gives_its_memory_back_and_is_left_alone(tmp_path: Path) -> None:
    with running(config_for(tmp_path / "warehouse")) as api:
        api.put_topic("orders", partitions=1)
        api.service.partitions.tending.every_s = 0.0
        api.send("orders", "a", "b")
        ref = PartitionRef(Space.TOPICS, "orders", "orders@broker-a")
        partition = next(p for p in api.service.partitions if p.ref == ref)
        assert partition.log is not None
        until(lambda: not partition.log.in_memory(0, 1))
        until(lambda: partition.tended_at_s - api.service.loop.time() > 600)
        api.service.partitions.tending.every_s = 30.0
        assert [m["body"] for m in api.fetch("orders", ref.name).json["messages"]] == ["a", "b"]
        api.send("orders", "c")
        until(lambda: partition.tended_at_s - api.service.loop.time() <= 30)


def test_readers_that_wait_are_the_only_ones_that_are_looked_at(tmp_path: Path) -> None:
    with running(config_for(tmp_path / "warehouse")) as api:
        api.put_topic("orders", partitions=8)
        awaited = api.service.partitions.awaited
        asyncio.run_coroutine_threadsafe(_wait_briefly(api, "orders@broker-a"), api.service.loop).result(20)
        until(lambda: not awaited)


async def _wait_briefly(api: Api, name: str) -> None:
    partition = next(p for p in api.service.partitions if p.name == name)
    waiter = partition.waiter()
    assert list(api.service.partitions.awaited) == [partition]
    partition.forget(waiter)
