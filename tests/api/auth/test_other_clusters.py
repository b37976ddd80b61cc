"""Nothing goes between clusters as long as requests need keys (SPEC SEC-6, STATIC-19)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.api.guarded import Guarded, guarded
from tests.api.running import Reply, config_for, running
from tests.api.two_clusters import name_of

HERE = "deltamq"
TOPIC = {"static": True, "scope": "global", "total_queues": 2}


class Alone(NamedTuple):
    """A service with authentication, a global topic from before it had any, and another cluster that only listens."""

    api: Guarded
    other: socket.socket


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    folder = tmp_path_factory.mktemp("alone") / "warehouse"
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:
        other.setblocking(False)
        clusters = (f"west=http://127.0.0.1:{other.getsockname()[1]}",)
        with running(config_for(folder, clusters=clusters)) as api:
            assert api.call("PUT", "/v1/topics/before", {**TOPIC, "clusters": [HERE]}).status == 201
            assert api.send("before", {"body": "x", "partition": name_of(0)}).status == 200
        with guarded(folder, clusters=clusters, clusters_refresh_ms=50) as api:
            yield Alone(api, other)


def refused(reply: Reply) -> bool:
    return (reply.status, reply.json["code"]) == (422, "global_unsupported") and "service.auth" in reply.json["detail"]


def test_sec_06_nothing_goes_between_clusters_as_long_as_requests_need_keys(alone: Alone) -> None:
    api = alone.api
    shown = api.call("GET", "/v1/topics/before").json
    world = {"id": shown["id"], "home": HERE, "here": HERE, "epoch": 1 << 50, "clusters": [HERE, "west"]}
    stay = {"cluster": HERE, "local_start": 0, "logic_offset": 0, "start_ms": 1}
    copy = {"world": {**world, "queues": [[stay], [stay]]}, "settings": {"order_strategy": "best_tried"}}
    replies = [
        api.call("PUT", "/v1/topics/new", {**TOPIC, "clusters": [HERE, "west"]}),
        api.call("PUT", "/v1/topics/new", {**TOPIC, "clusters": [HERE]}),
        api.call("PUT", "/v1/topics/new/global", copy),
        api.call("PUT", "/v1/topics/before/global", copy),
        api.call("GET", "/v1/topics/before/global"),
        api.call("GET", "/v1/topics/before/global/producers/p"),
        api.call("POST", "/v1/topics/before/remap", {"clusters": [HERE]}),
        api.call("POST", "/v1/topics/before/remap", {"clusters": [HERE], "plan": True}),
        api.send("before", {"body": "x", "partition": name_of(0)}),
        api.send("before", {"body": "x"}, producer={"id": "p", "seq": 1}),
        api.fetch("before", name_of(0)),
    ]
    assert all(map(refused, replies)), replies
    assert api.call("GET", "/v1/topics/new").status == 404
    assert api.call("GET", "/v1/topics/before").json == shown
    with pytest.raises(BlockingIOError):  # not even a look whether there is a newer copy
        alone.other.accept()


@pytest.mark.parametrize("with_key", [True, False])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/v1/topics/before"),
        ("GET", "/v1/topics/before"),
        ("PUT", "/v1/topics/before/global"),
        ("GET", f"/v1/topics/before/partitions/{name_of(0)}/messages"),
        ("POST", "/v1/topics/before/messages"),
    ],
)
def test_sec_06_a_forged_header_of_a_cluster_is_refused(alone: Alone, method: str, path: str, with_key: bool) -> None:
    api = alone.api if with_key else alone.api.by(None)
    assert refused(api.call(method, path, **{"Mq-Cluster": "west", "Mq-Global-Epoch": "7"}))
    assert alone.api.call("GET", "/v1/topics/before").status == 200


def test_sec_04_what_clusters_tell_each_other_is_for_administrators_alone(alone: Alone) -> None:
    caller = alone.api.caller("reader", ("topic", "before", "subscribe", "publish", "describe", "alter"))
    for method, path in (("GET", ""), ("PUT", ""), ("GET", "/producers/p")):
        target = f"/v1/topics/before/global{path}"
        assert caller.call(method, target).status == 403
        assert alone.api.by(None).call(method, target).status == 401


def test_sec_06_a_cluster_without_keys_makes_no_topic_with_one_that_wants_them(tmp_path: Path) -> None:
    with guarded(tmp_path / "west") as west:
        config = config_for(tmp_path / "east", clusters=(f"{HERE}=http://127.0.0.1:{west.port}",))
        with running(replace(config, warehouse=replace(config.warehouse, cluster="east"))) as east:
            reply = east.call("PUT", "/v1/topics/shared", {**TOPIC, "clusters": ["east", HERE]})
            assert refused(reply), reply
            assert east.call("GET", "/v1/topics/shared").status == 404 == west.call("GET", "/v1/topics/shared").status
