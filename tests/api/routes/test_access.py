"""Access over REST: closing brokers and partitions for writes and reads (SPEC ROUTE-9, SEND-2)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.exclusive import Member, exclusive_group
from tests.api.routes.test_sse import stream
from tests.api.running import Api, Reply, config_for, running, until


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(config_for(tmp_path_factory.mktemp("access"))) as api:
        yield api


@pytest.fixture(autouse=True)
def opened(api: Api) -> Iterator[None]:
    yield
    for broker in ("broker-a", "broker-b"):
        assert close(api, broker).status == 200


def close(api: Api, broker: str, **access: object) -> Reply:
    """Set the access of a broker; without more it is opened."""
    return api.call("PUT", f"/v1/brokers/{broker}", dict(access))


def close_partition(api: Api, topic: str, partition: str, **access: object) -> Reply:
    return api.call("PUT", f"/v1/topics/{topic}/partitions/{quote(partition, safe='')}", dict(access))


def keyed(count: int = 64) -> list[dict[str, object]]:
    return [{"body": f"m{at}", "key": f"k{at}"} for at in range(count)]


def named(partition: str) -> str:
    return f"?partition={quote(partition, safe='')}"


def brokers_of(reply: Reply) -> set[str]:
    assert reply.status == 200, reply
    return {one["partition"].rpartition("@")[2] for one in reply.json["ranges"]}


def code_of(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["code"]


def shown(api: Api, broker: str) -> Any:
    (found,) = (one for one in api.call("GET", "/v1/cluster").json["brokers"] if one["broker"] == broker)
    return found


def test_route_09_access_is_set_and_shown(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    set_ = close(api, "broker-a", writable=False, reason="disk")
    assert set_.json == {"broker": "broker-a", "readable": True, "writable": False, "reason": "disk", "until": None}
    assert (shown(api, "broker-a")["writable"], shown(api, "broker-a")["reason"]) == (False, "disk")
    assert shown(api, "broker-b")["writable"]
    one = close_partition(api, topic, f"{topic}@broker-a", readable=False, reason="torn")
    assert (one.json["readable"], one.json["writable"], one.json["reason"]) == (False, False, "torn; disk")
    partitions = api.partitions(topic)
    assert not partitions[f"{topic}@broker-a"]["readable"] and partitions[f"{topic}@broker-b"]["readable"]
    assert close(api, "broker-a").json["writable"]
    assert api.partitions(topic)[f"{topic}@broker-a"]["writable"]


def test_route_09_wrong_requests_change_nothing(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    assert code_of(close(api, "broker-x", writable=False)) == (404, "broker_not_found")
    assert code_of(close(api, "broker-a", writable="no"))[0] == 400
    assert code_of(close(api, "broker-a", writable=False, until="soon"))[0] == 400
    assert code_of(close(api, "broker-a", writable=False, until="2013-01-01T05:15:00Z")) == (422, "until_passed")
    assert code_of(close(api, "broker-a", writable=False, reason="a\nb"))[0] == 422
    assert code_of(close_partition(api, topic, "other@broker-a", writable=False)) == (404, "partition_not_found")
    assert shown(api, "broker-a")["writable"]


def test_send_02_keys_of_a_best_tried_topic_go_to_an_open_partition(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    assert brokers_of(api.send(topic, *keyed())) == {"broker-a", "broker-b"}
    close(api, "broker-a", writable=False)
    assert brokers_of(api.send(topic, *keyed())) == {"broker-b"}
    for _ in range(8):
        assert brokers_of(api.send(topic, "alone")) == {"broker-b"}
    close(api, "broker-a")
    assert brokers_of(api.send(topic, *keyed())) == {"broker-a", "broker-b"}


def test_send_02_keys_of_a_strict_topic_wait(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2, order_strategy="strict")
    close(api, "broker-a", writable=False, reason="disk")
    refused = api.send(topic, *keyed())
    assert code_of(refused) == (503, "not_writable") and "disk" in refused.json["detail"]
    assert sum(api.stored(topic).values()) == 0
    for _ in range(8):
        assert brokers_of(api.send(topic, "alone")) == {"broker-b"}
    close(api, "broker-a")
    assert brokers_of(api.send(topic, *keyed())) == {"broker-a", "broker-b"}


def test_route_09_a_named_partition_is_refused_and_nothing_is_stored(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    name = f"{topic}@broker-a"
    close_partition(api, topic, name, writable=False)
    assert code_of(api.send(topic, "m", query=named(name))) == (503, "not_writable")
    assert code_of(api.send(topic, {"body": "m", "partition": name}, "other")) == (503, "not_writable")
    assert sum(api.stored(topic).values()) == 0
    close(api, "broker-b", writable=False)
    assert code_of(api.send(topic, "m")) == (503, "not_writable")


def test_send_05_a_repeated_request_is_told_where_it_is_although_the_partition_is_closed(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    once = api.send(topic, *keyed(), producer={"id": "p", "seq": 1})
    close(api, "broker-a", writable=False)
    again = api.send(topic, *keyed(), producer={"id": "p", "seq": 1})
    assert again.json["duplicate"] and sorted(r["partition"] for r in again.json["ranges"]) == sorted(
        r["partition"] for r in once.json["ranges"]
    )
    assert sum(api.stored(topic).values()) == 64


def test_route_09_reads_are_refused_and_everything_stays(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    (name,) = api.partitions(topic)
    api.send(topic, "m")
    broker = name.rpartition("@")[2]
    close(api, broker, readable=False, reason="restore")
    refused = api.fetch(topic, name)
    assert code_of(refused) == (503, "not_readable") and "restore" in refused.json["detail"]
    assert api.send(topic, "n").status == 200
    close(api, broker)
    assert api.bodies_of(topic, name) == ["m", "n"]


def test_route_09_a_waiting_reader_ends(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    (name,) = api.partitions(topic)
    replies: list[Reply] = []
    reader = threading.Thread(target=lambda: replies.append(api.fetch(topic, name, "?wait_ms=20000")))
    reader.start()
    until(lambda: any(one.topic == topic for one in list(api.service.partitions.awaited)))
    close_partition(api, topic, name, readable=False)
    reader.join(10)
    assert code_of(replies[0]) == (503, "not_readable")


def test_route_09_pops_skip_what_cannot_be_read(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    api.call("PUT", f"/v1/groups/g-{topic}", {})
    for name in api.partitions(topic):
        api.send(topic, name, query=named(name))
    close(api, "broker-a", readable=False)

    def popped() -> list[str]:
        reply = api.call("POST", f"/v1/groups/g-{topic}/topics/{topic}/pop", {"max_messages": 10, "wait_ms": 100})
        assert reply.status == 200, reply
        return [one["body"] for one in reply.json["messages"]]

    assert popped() == [f"{topic}@broker-b"] and popped() == []
    close(api, "broker-a")
    assert popped() == [f"{topic}@broker-a"]


def test_route_09_new_topics_and_expansions_avoid_a_closed_broker(api: Api, topic: str) -> None:
    close(api, "broker-a", writable=False)
    assert [one["broker"] for one in api.put_topic(topic)["partitions"]] == ["broker-b"]
    grown = api.put_topic(topic, partitions=3)
    assert {one["broker"] for one in grown["partitions"]} == {"broker-b"}
    close(api, "broker-b", writable=False)
    assert code_of(api.call("PUT", f"/v1/topics/{topic}-2", {})) == (503, "no_broker")
    assert api.put_topic(topic, retention_ms=3_600_000)["retention_ms"] == 3_600_000


def test_route_09_access_ends_at_its_time(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("t", partitions=2)
        end = datetime.now(UTC) + timedelta(seconds=1)
        close(api, "broker-a", writable=False, until=end.isoformat().replace("+00:00", "Z"))
        assert brokers_of(api.send("t", *keyed())) == {"broker-b"}
        until(lambda: brokers_of(api.send("t", *keyed())) == {"broker-a", "broker-b"})
        assert shown(api, "broker-a") | {"reason": None} == shown(api, "broker-a")


def test_static_22_a_closed_queue_is_refused_and_its_messages_never_go_elsewhere(api: Api, topic: str) -> None:
    api.put_topic(topic, static=True, total_queues=2)
    close(api, "broker-a", writable=False)
    assert code_of(api.send(topic, *keyed())) == (503, "not_writable")
    queues = api.call("GET", f"/v1/topics/{topic}").json["logical_queues"]
    (closed,) = (one["partition"] for one in queues if one["segments"][-1]["broker"] == "broker-a")
    assert code_of(api.send(topic, "m", query=named(closed))) == (503, "not_writable")
    for _ in range(8):
        (where,) = api.send(topic, "m").json["ranges"]
        assert where["partition"] != closed
    remapped = api.call("POST", f"/v1/topics/{topic}/remap", {"brokers": ["broker-a"]})
    assert code_of(remapped) == (503, "not_writable")
    close(api, "broker-a", readable=False)
    assert code_of(api.fetch(topic, closed)) == (503, "not_readable")


def test_route_09_an_event_stream_says_why_it_ends(api: Api, topic: str) -> None:
    api.put_topic(topic, routes=[f"{topic}@broker-a"])
    api.send(topic, "m")
    with stream(api, topic) as events:
        assert json.loads(next(events)["data"])["body"] == "m"
        close(api, "broker-a", readable=False, reason="restore")
        last = next(events)
        assert last["event"] == "refused" and json.loads(last["data"])["code"] == "not_readable"


def test_route_09_an_exclusive_client_keeps_its_lock(api: Api, topic: str) -> None:
    api.put_topic(topic, routes=[f"{topic}@broker-a"])
    name = f"{topic}@broker-a"
    api.send(topic, "m")
    exclusive_group(api, f"g-{topic}")
    member = Member(api, f"g-{topic}", topic, "one")
    assert member.allocated() == [name]
    member.take(name)
    close(api, "broker-a", readable=False)
    assert code_of(member.fetch(name)) == (503, "not_readable")
    assert member.commit(name, 0).status in (200, 204)
    close(api, "broker-a")
    assert [one["body"] for one in member.fetch(name).json["messages"]] == ["m"]
