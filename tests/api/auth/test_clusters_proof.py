"""Global topics between clusters with authentication: the caller is proved, and judged by each cluster (SPEC SEC-6)."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from deltamq.api.auth.forwarded import PROOF_MS_MAX
from deltamq.api.first_start import make_administrator
from deltamq.api.host.clusters import ClusterProofs
from deltamq.api.host.peers import Call
from deltamq.tables.config_sections import Secret
from tests.api.guarded import SECRET, Guarded, guarded
from tests.api.running import JSON, Api, Reply, config_for, running, until
from tests.api.two_clusters import NAMES, GlobalTopic, TwoClusters, name_of

SHARED: Final = "fedcba9876543210" * 4
TOPIC: Final = "orders"
WHO: Final = "reports"


class Both:
    """East and west with authentication, and the principal `reports` in both, with a key in each."""

    def __init__(self, clusters: TwoClusters) -> None:
        self.clusters = clusters
        self.admins: dict[str, Guarded] = {}
        for name in NAMES:
            token = make_administrator(clusters.config(name), "admin")[1]
            api = clusters.start(name)
            self.admins[name] = Guarded(api.port, api.service, token=token)
        reply = GlobalTopic(self.east, TOPIC).create(2)
        assert reply.status == 201, reply
        self.by = {name: self.caller(name, WHO, "publish", "subscribe", "describe") for name in NAMES}

    @property
    def east(self) -> Guarded:
        return self.admins["east"]

    @property
    def west(self) -> Guarded:
        return self.admins["west"]

    def caller(self, cluster: str, principal: str, *verbs: str) -> Guarded:
        return self.admins[cluster].caller(principal, ("topic", "o*", *verbs))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    service = {"auth": True, "cluster_secret": Secret(SECRET), "clusters_shared_secret": Secret(SHARED)}
    clusters = TwoClusters(tmp_path_factory.mktemp("both"), service=service)
    try:
        yield Both(clusters)
    finally:
        for name in list(clusters._running):
            clusters.stop(name)


def refused(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["code"]


def test_sec_06_a_callers_own_key_is_good_for_queues_of_all_clusters(both: Both) -> None:
    topics = [GlobalTopic(both.by[name], TOPIC) for name in NAMES]
    for queue in (0, 1):
        offsets = [topic.send_to(queue, "x")[0] for topic in topics]
        assert offsets == sorted(set(offsets))
        assert topics[0].read(queue) == topics[1].read(queue) != []
        (sent,) = topics[0].send_to(queue, "y", producer={"id": f"p{queue}", "seq": 1})
        assert topics[1].send_to(queue, "y", producer={"id": f"p{queue}", "seq": 1}) == [sent]
    for topic in topics:
        queues = topic.ask("GET").json["logical_queues"]
        assert [one["max_offset"] for one in queues] == [3, 3], "what the other cluster tells is shown, too"


def test_sec_06_topics_are_moved_checked_and_deleted_between_guarded_clusters(both: Both) -> None:
    topic = GlobalTopic(both.east, "o-moved")
    west = topic.at(both.west)
    assert topic.create(2).status == 201
    assert topic.send_to(1, "a", producer={"id": "p", "seq": 1}) == [0]
    assert west.remap("east").status == 200, "the home does it, for the administrator of its own cluster"
    assert topic.send_to(1, "a", producer={"id": "p", "seq": 1}) == [0], "west told what it remembers"
    assert west.send_to(1, "b") == [1] and west.read(1) == [(0, "a"), (1, "b")]
    assert west.ask("POST", "/check").json["complete"] is True
    assert topic.ask("DELETE").status == 204 and west.ask("GET").status == 404


def test_sec_06_each_cluster_decides_by_its_own_rules(both: Both) -> None:
    both.admins["west"].put_principal("half")
    half = both.caller("east", "half", "publish", "subscribe", "describe")
    stranger = both.caller("east", "stranger", "publish", "subscribe", "describe")
    for caller, code in ((half, "forbidden"), (stranger, "principal_unknown")):
        topic = GlobalTopic(caller, TOPIC)
        assert topic.fetch(0).status == 200, "it lies in east"
        sent = caller.send(TOPIC, {"body": "x", "partition": name_of(1)})
        assert refused(sent) == (403, code) == refused(topic.fetch(1))
    both.admins["west"].rule("half", "topic", TOPIC, "subscribe")
    assert GlobalTopic(half, TOPIC).fetch(1).status == 200
    assert refused(half.send(TOPIC, {"body": "x", "partition": name_of(1)})) == (403, "forbidden")


def test_sec_06_a_groups_progress_in_another_cluster_needs_access_there(both: Both) -> None:
    path, offsets = f"/v1/groups/o-group/topics/{TOPIC}/offsets", {name_of(1): 0}
    caller = both.caller("east", "committing", "publish", "subscribe", "describe")
    both.east.rule("committing", "group", "o-group", "subscribe", "describe", "reset")
    both.west.put_principal("committing")
    both.west.rule("committing", "topic", TOPIC, "subscribe", "describe")
    assert caller.call("PUT", path, {"offsets": {name_of(0): 0}}).status == 200
    for reply in (
        caller.call("PUT", path, {"offsets": offsets}),
        caller.call("GET", path),
        caller.call("POST", f"{path}/reset", {"to": offsets}),
    ):
        assert refused(reply) == (403, "forbidden"), reply
    both.west.rule("committing", "group", "o-group", "subscribe", "describe", "reset")
    assert caller.call("PUT", path, {"offsets": offsets}).status == 200
    assert caller.call("GET", path).json["offsets"] == {name_of(0): 0, name_of(1): 0}
    assert caller.call("POST", f"{path}/reset", {"to": offsets}).status == 200


def test_sec_06_pops_and_handles_of_another_cluster_need_access_there(both: Both) -> None:
    topic = GlobalTopic(both.east, "o-popped")
    assert topic.create(2).status == 201
    topic.send_to(1, "a")
    path = "/v1/groups/o-group"
    caller = both.caller("east", "popping", "subscribe")
    both.east.rule("popping", "group", "o-group", "subscribe")
    both.west.put_principal("popping")
    for resource, name in (("topic", "o-popped"), ("group", "o-group")):
        assert refused(caller.call("POST", f"{path}/topics/o-popped/pop", {})) == (403, "forbidden")
        both.west.rule("popping", resource, name, "subscribe")
    (message,) = caller.call("POST", f"{path}/topics/o-popped/pop", {}).json["messages"]
    stranger = both.caller("east", "popping-not", "subscribe")
    both.east.rule("popping-not", "group", "o-group", "subscribe")
    asked = {"handles": [message["handle"]]}
    assert refused(stranger.call("POST", f"{path}/ack", asked)) == (403, "principal_unknown")
    assert caller.call("POST", f"{path}/ack", asked).json == {"acked": 1, "failed": []}


def test_sec_06_making_a_global_topic_needs_what_making_any_topic_needs(both: Both) -> None:
    caller = both.caller("east", "altering", "alter")
    topic = GlobalTopic(caller, "o-new")
    assert refused(topic.create(2)) == (403, "forbidden")
    both.east.rule("altering", "topic", "o-new", "create")
    assert topic.create(2).status == 201


@pytest.mark.parametrize("end", ["rule", "principal", "disabled", "key"])
def test_sec_05_a_fetch_that_waits_elsewhere_ends_with_its_access_there_or_its_key_here(both: Both, end: str) -> None:
    who = f"waiting-{end}"
    caller, west = both.caller("east", who, "subscribe"), both.west
    west.put_principal(who)
    rule = west.rule(who, "topic", TOPIC, "subscribe")
    topic = GlobalTopic(caller, TOPIC)
    at = topic.fetch(1).json["max_offset"]
    gate = west.service.gate
    assert gate is not None
    found: list[Reply] = []
    thread = threading.Thread(target=lambda: found.append(topic.fetch(1, at, "&wait_ms=20000")))
    thread.start()
    until(lambda: any(one.is_named and one.caller.name == who for one in gate._waiting.values()))
    ended = {
        "rule": lambda: west.call("DELETE", f"/v1/auth/acls/{rule}"),
        "principal": lambda: west.call("DELETE", f"/v1/auth/principals/{who}"),
        "disabled": lambda: west.call("POST", f"/v1/auth/principals/{who}/disable"),
        "key": lambda: both.east.call("DELETE", f"/v1/auth/keys/{str(caller.token)[4:20]}"),
    }[end]()
    assert ended.status in (200, 204), ended
    thread.join(10)
    assert found and found[0].status == (401 if end == "key" else 403), found


def proved(
    cluster: str = "west", *, here: str = "east", secret: str = SHARED, apart_ms: int = 0, call: Call, api: Api
) -> dict[str, str]:
    """The headers by which a cluster forwards a call."""
    proofs = ClusterProofs(here, secret.encode(), lambda: api.service.now_ms() + apart_ms)
    headers = [*call.headers, (b"mq-cluster", here.encode()), (b"mq-global-epoch", b"0")]
    return {name.decode(): value.decode() for name, value in proofs.proved(cluster, call._replace(headers=headers))}


PATH: Final = f"/v1/topics/{TOPIC}/messages"
BODY: Final = b'{"messages":[{"body":"x","partition":"1@__global_logical_queue_broker__"}]}'
CALL: Final = Call("POST", PATH.encode(), [(b"content-type", JSON.encode())], BODY, principal=WHO)


def asked(both: Both, headers: dict[str, str], path: str = PATH, body: bytes = BODY, method: str = "POST") -> Reply:
    return both.west.by(None).call(method, path, body, **headers)


def test_sec_06_a_proof_of_another_cluster_is_believed_for_a_minute(both: Both) -> None:
    for apart_ms in (0, 2_000 - PROOF_MS_MAX):
        reply = asked(both, proved(call=CALL, api=both.west, apart_ms=apart_ms))
        assert reply.status == 200, reply


@pytest.mark.parametrize(
    "change",
    [
        {"secret": "0123456789abcdef" * 4},
        {"secret": SECRET},
        {"cluster": "north"},
        {"apart_ms": -PROOF_MS_MAX - 2_000},
        {"apart_ms": PROOF_MS_MAX + 2_000},
        {"call": CALL._replace(method="GET")},
        {"call": CALL._replace(target=PATH.encode() + b"?x=1")},
        {"call": CALL._replace(target=b"/v1/topics/others/messages")},
        {"call": CALL._replace(body=BODY.replace(b"x", b"y", 1))},
        {"call": CALL._replace(body=b"")},
        {"call": CALL._replace(headers=[(b"content-type", b"application/x-ndjson")])},
    ],
)
def test_sec_06_a_forged_old_or_foreign_proof_is_refused(both: Both, change: dict[str, Any]) -> None:
    before = GlobalTopic(both.west, TOPIC).read(1)
    headers = proved(**{"call": CALL, "api": both.west, **change})
    headers["content-type"] = JSON
    reply = asked(both, headers)
    assert refused(reply) == (403, "cluster_unproved"), reply
    assert GlobalTopic(both.west, TOPIC).read(1) == before, "nothing was stored"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mq-principal", "admin"),
        ("mq-cluster", "north"),
        ("mq-global-epoch", "9"),
        ("mq-stored-only", "1"),
        ("mq-body", "00"),
        ("mq-cluster-proof", ""),
        ("mq-cluster-proof", "1.00"),
        ("mq-forwarded", "host"),
    ],
)
@pytest.mark.parametrize("with_key", [True, False])
def test_sec_06_a_header_that_was_changed_is_refused(both: Both, name: str, value: str, with_key: bool) -> None:
    headers = proved(call=CALL, api=both.west) | {name: value}
    api = both.west if with_key else both.west.by(None)
    reply = api.call("POST", PATH, BODY, **headers)
    assert reply.status == 403 and reply.json["code"] in ("cluster_unproved", "forwarded_unproved"), reply


def test_sec_06_a_principal_is_believed_from_a_cluster_alone(both: Both) -> None:
    path = f"/v1/topics/{TOPIC}"
    assert both.west.by(None).call("GET", path, **{"Mq-Principal": "admin"}).status == 401
    caller = both.caller("west", "no-admin", "describe")
    assert caller.call("GET", "/v1/auth/principals", **{"Mq-Principal": "admin"}).status == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/auth/principals"), ("GET", f"/v1/topics/{TOPIC}"), ("GET", f"{PATH}/x"), ("PUT", "/v1/topics/o-new")],
)
def test_sec_06_a_cluster_in_its_own_name_may_send_the_clusters_calls_alone(both: Both, method: str, path: str) -> None:
    call = Call(method, path.encode(), (), b"")
    reply = asked(both, proved(call=call, api=both.west), path, b"", method)
    assert refused(reply) == (403, "forbidden"), reply


def test_sec_06_a_cluster_deletes_no_topic_of_another_ones_own(both: Both) -> None:
    both.west.put_topic("o-own", partitions=1)
    call = Call("DELETE", b"/v1/topics/o-own", (), b"")
    reply = asked(both, proved(call=call, api=both.west), "/v1/topics/o-own", b"", "DELETE")
    assert refused(reply) == (409, "topic_not_global")
    assert both.west.call("GET", "/v1/topics/o-own").status == 200


def test_sec_06_a_process_passes_on_in_whose_name_another_cluster_asks(tmp_path: Path) -> None:
    shared = {"cluster_secret": Secret(SECRET), "clusters_shared_secret": Secret(SHARED)}
    with (
        guarded(tmp_path / "west", brokers=("broker-a",), **shared) as west_a,
        guarded(tmp_path / "west", token=west_a.token, brokers=("broker-b",), **shared) as west_b,
    ):
        clusters = (f"deltamq=http://127.0.0.1:{west_a.port}",)
        config = config_for(tmp_path / "east", auth=True, clusters=clusters, **shared)
        config = replace(config, warehouse=replace(config.warehouse, cluster="east"))
        token = make_administrator(config, "admin")[1]
        with running(config) as api:
            east = Guarded(api.port, api.service, token=token)
            asked = {"static": True, "scope": "global", "total_queues": 4, "clusters": ["deltamq"]}
            assert east.call("PUT", "/v1/topics/orders", asked).status == 201
            queues = west_b.call("GET", "/v1/topics/orders").json["logical_queues"]
            assert {one["segments"][-1]["broker"] for one in queues} == {"broker-a", "broker-b"}
            caller = east.caller("worker", ("topic", "orders", "subscribe", "describe"), ("group", "g", "subscribe"))
            path, offsets = "/v1/groups/g/topics/orders/offsets", {name_of(queue): 0 for queue in range(4)}
            west_a.put_principal("worker")
            west_a.rule("worker", "topic", "orders", "subscribe")
            assert refused(caller.call("PUT", path, {"offsets": offsets})) == (403, "forbidden")
            west_a.rule("worker", "group", "g", "subscribe")
            before = west_a.service.peers.asked
            reply = caller.call("PUT", path, {"offsets": offsets})
            assert (reply.status, reply.json["offsets"]) == (200, offsets), reply
            assert west_a.service.peers.asked > before, "half of the queues are the other process's"


def test_sec_06_a_cluster_without_keys_cannot_ask_in_a_callers_name(tmp_path: Path) -> None:
    with guarded(tmp_path / "west", clusters_shared_secret=Secret(SHARED)) as west:
        here = "deltamq"
        clusters = (f"{here}=http://127.0.0.1:{west.port}",)
        config = config_for(tmp_path / "east", clusters=clusters, clusters_shared_secret=Secret(SHARED))
        config = replace(config, warehouse=replace(config.warehouse, cluster="east"))
        with running(config) as east:
            asked = {"static": True, "scope": "global", "total_queues": 2, "clusters": ["east", here]}
            assert east.call("PUT", "/v1/topics/shared", asked).status == 201
            reply = east.send("shared", {"body": "x", "partition": name_of(0)})
            found = east.fetch("shared", name_of(1))
            assert {refused(one) for one in (reply, found) if one.status != 200} == {(403, "forbidden")}


def test_sec_06_a_callers_key_never_leaves_its_cluster(tmp_path: Path) -> None:
    world = {"id": "w", "home": "west", "here": "west", "epoch": 1, "clusters": ["deltamq", "west"]}
    stay = {"cluster": "west", "local_start": 0, "logic_offset": 0, "start_ms": 1}
    copy = {"world": {**world, "queues": [[stay]]}, "settings": {"order_strategy": "best_tried"}}
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as west:
        clusters = (f"west=http://127.0.0.1:{west.getsockname()[1]}",)
        settings = {"clusters": clusters, "clusters_shared_secret": Secret(SHARED), "clusters_refresh_ms": 3_600_000}
        with guarded(tmp_path / "east", **settings) as east:
            assert east.call("PUT", "/v1/topics/o/global", copy).status == 200
            send = partial(east.call, "POST", "/v1/topics/o/messages", {"messages": [{"body": "x"}]}, Cookie="key=1")
            thread = threading.Thread(target=send)
            thread.start()
            connection, _ = west.accept()
            with connection:
                head = connection.recv(65_536).lower()
            thread.join(10)
            assert b"post /v1/topics/o/messages" in head and b"mq-principal: admin" in head
            assert b"mq-cluster-proof: " in head and b"authorization" not in head and b"cookie" not in head
            assert str(east.token).lower().encode() not in head and SHARED.encode() not in head


def test_sec_06_the_shared_secret_is_not_shown_or_stored(both: Both) -> None:
    settings = both.east.service.settings
    assert SHARED not in repr(settings) and SHARED not in str(both.clusters.config("east"))
    stored = b"".join(path.read_bytes() for path in both.clusters.folder.rglob("*") if path.is_file())
    assert SHARED.encode() not in stored
