"""Health, cluster, metrics, console and the API's own description."""

from __future__ import annotations

import json
import re
import threading
from http import HTTPStatus
from pathlib import Path
from unittest.mock import patch

from deltamq.api.wire.cloud_events import BATCHED, STRUCTURED
from deltamq.tables.log.log import PartitionLog
from tests.api.running import JSON, Api, config_for, running, until


def test_health_and_readiness(api: Api) -> None:
    assert api.call("GET", "/healthz").json == {"status": "alive"}
    assert api.call("GET", "/readyz").json == {"status": "serving", "stopped_partitions": 0, "stopped": []}


def test_the_cluster_names_brokers_roles_and_warehouse(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=3)
    found = api.call("GET", "/v1/cluster").json
    assert 0 < found["disk"]["free_bytes"] <= found["disk"]["size_bytes"]
    assert found["store"] is None, "a disk's calls cost nothing"
    assert found["warehouse"] == api.service.warehouse.uri
    assert [(b["broker"], b["roles"]) for b in found["brokers"]] == [
        ("broker-a", ["broker", "meta"]),
        ("broker-b", ["broker"]),
    ]
    assert sum(b["partitions"] for b in found["brokers"]) >= 3
    assert found["routes_epoch"] >= 1


def test_metrics_count_requests_messages_and_commits(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    before = _metrics(api, "?partitions=true")
    for seq in (0, 0, 1):
        api.send(topic, "a", "b", producer={"id": "p", "seq": seq})
    api.send(topic, {"x": 1})
    api.fetch(topic, f"{topic}@broker-a")
    after = _metrics(api, "?partitions=true")

    def grew(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert grew('deltamq_requests_total{call="produce",status="200"}') == 3
    assert grew('deltamq_requests_total{call="produce",status="400"}') == 1
    assert grew(f'deltamq_produced_messages_total{{topic="{topic}"}}') == 6
    assert grew(f'deltamq_fetched_messages_total{{topic="{topic}"}}') == 4
    assert grew("deltamq_duplicate_parts_total") == 1
    assert grew("deltamq_produce_seconds_count") == 3
    assert after[f'deltamq_partition_end_offset{{partition="{topic}@broker-a",topic="{topic}"}}'] == 4
    assert after["deltamq_queue_requests"] == after["deltamq_queue_bytes"] == 0


def test_a_stop_begins_no_upkeep(tmp_path: Path) -> None:
    gate, maintained = threading.Event(), []
    with running(config_for(tmp_path / "warehouse")) as api:
        keep_up, waiting = api.service.partitions.keep_up, api.service._threads._upkeep._work_queue
        with patch.object(PartitionLog, "maintain", lambda log: maintained.append(log.ref.topic)):
            keep_up(lambda: gate.wait(20) and None)
            try:
                api.put_topic("orders", partitions=1)
                api.send("orders", "a")
                until(waiting.qsize)
                api.service.partitions.stopping = True
            finally:
                gate.set()
            ended = threading.Event()
            keep_up(ended.set)
            assert ended.wait(20)
            assert "orders" not in maintained


def _metrics(api: Api, query: str = "") -> dict[str, float]:
    reply = api.call("GET", f"/metrics{query}")
    assert reply.headers["content-type"].startswith("text/plain")
    lines = reply.body.decode().splitlines()
    samples = [re.sub(r"\{([^}]*)\}", _sorted_labels, line) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in (s.rpartition(" ") for s in samples)}


def _sorted_labels(match: re.Match[str]) -> str:
    return "{" + ",".join(sorted(match[1].split(","))) + "}"


def test_openapi_describes_every_call_with_examples_and_problems(api: Api) -> None:
    document = api.call("GET", "/openapi.json").json
    calls = {(method, path): call for path, item in document["paths"].items() for method, call in item.items()}
    assert {
        ("post", "/v1/topics/{topic}/messages"),
        ("get", "/v1/topics/{topic}/partitions/{partition}/messages"),
        ("put", "/v1/topics/{topic}"),
        ("get", "/v1/topics/{topic}"),
        ("delete", "/v1/topics/{topic}"),
        ("get", "/v1/topics/{topic}/offsets"),
        ("post", "/v1/topics/{topic}/remap"),
        ("post", "/v1/topics/{topic}/check"),
        ("post", "/v1/topics/{topic}/repair"),
        *((method, "/v1/topics/{topic}/global") for method in ("get", "put")),
        ("get", "/v1/topics/{topic}/global/producers/{producer_id}"),
        ("get", "/v1/topics"),
        ("delete", "/v1/topics/{topic}/messages/{message_id}"),
        ("get", "/v1/groups"),
        ("get", "/v1/groups/{group}"),
        ("put", "/v1/groups/{group}"),
        ("delete", "/v1/groups/{group}"),
        ("post", "/v1/groups/{group}/pause"),
        ("post", "/v1/groups/{group}/resume"),
        ("get", "/v1/groups/{group}/topics/{topic}/offsets"),
        ("put", "/v1/groups/{group}/topics/{topic}/offsets"),
        ("post", "/v1/groups/{group}/topics/{topic}/offsets/reset"),
        ("post", "/v1/groups/{group}/clients/{client_id}/heartbeat"),
        *((method, "/v1/groups/{group}/topics/{topic}/locks") for method in ("get", "post")),
        ("delete", "/v1/groups/{group}/topics/{topic}/locks"),
        ("post", "/v1/groups/{group}/topics/{topic}/aside"),
        ("get", "/v1/groups/{group}/statistics"),
        ("post", "/v1/topics/{topic}/erase"),
        ("get", "/v1/erasures/{erasure}"),
        ("get", "/v1/topics/{topic}/latest/{key}"),
        ("get", "/v1/topics/{topic}/quarantine"),
        ("post", "/v1/topics/{topic}/quarantine/replay"),
        ("delete", "/v1/topics/{topic}/quarantine"),
        ("get", "/v1/groups/{group}/dead-letters"),
        ("get", "/v1/groups/{group}/dead-letters/counts"),
        ("post", "/v1/groups/{group}/dead-letters/replay"),
        ("delete", "/v1/groups/{group}/dead-letters"),
        ("post", "/v1/groups/{group}/topics/{topic}/pop"),
        ("post", "/v1/groups/{group}/ack"),
        ("post", "/v1/groups/{group}/invisible"),
        ("post", "/v1/groups/{group}/nack"),
        ("post", "/v1/groups/{group}/dead"),
        *((method, "/v1/auth/principals/{principal}") for method in ("get", "put", "delete")),
        *(("post", f"/v1/auth/principals/{{principal}}/{how}") for how in ("disable", "enable")),
        ("delete", "/v1/auth/principals/{principal}/passwords/{mechanism}"),
        *(("get", f"/v1/auth/{kind}") for kind in ("principals", "keys", "acls", "quotas")),
        ("put", "/v1/auth/quotas/{principal}"),
        ("get", "/v1/auth/may"),
        ("get", "/v1/auth/sign-in"),
        ("post", "/v1/auth/keys"),
        ("delete", "/v1/auth/keys/{key_id}"),
        ("post", "/v1/auth/acls"),
        ("delete", "/v1/auth/acls/{acl_id}"),
        *(("get", f"/v1/audit{kind}") for kind in ("", "/refusals")),
        ("get", "/v1/cluster"),
        ("get", "/v1/topics/{topic}/search"),
        ("get", "/v1/topics/{topic}/partitions/{partition}/messages/{offset}/deliveries"),
        ("get", "/v1/topics/{topic}/delayed"),
        ("delete", "/v1/topics/{topic}/delayed/{message_id}"),
        ("get", "/v1/groups/{group}/in-flight"),
        ("get", "/v1/groups/{group}/retries"),
        ("get", "/v1/jobs"),
        ("get", "/v1/exports"),
        ("get", "/v1/applied"),
        ("put", "/v1/applied"),
        ("get", "/v1/settings"),
        ("get", "/v1/history"),
        ("get", "/v1/auth/explain"),
        ("put", "/v1/log-level"),
        ("get", "/v1/topics/{topic}/retention"),
        ("get", "/v1/cluster/upgrade"),
        ("post", "/v1/cluster/upgrade"),
        ("put", "/v1/brokers/{broker}"),
        ("put", "/v1/topics/{topic}/partitions/{partition}"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/metrics"),
        ("get", "/"),
    } == set(calls)
    for call in calls.values():
        assert call["summary"]
        for status, answer in call["responses"].items():
            named = answer.get("$ref", "").rpartition("/")[2]
            answer = document["components"]["responses"][named] if named else answer
            assert answer["description"]
            if int(status) >= 400:
                problem = answer["content"]["application/problem+json"]
                assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}
                assert problem["example"]["title"] == HTTPStatus(int(status)).phrase, "as it is answered"
    produce = calls["post", "/v1/topics/{topic}/messages"]
    assert produce["requestBody"]["content"][JSON]["example"] and len(produce["requestBody"]["content"]) == 5


def test_the_examples_of_openapi_work(api: Api) -> None:
    document = api.call("GET", "/openapi.json").json
    content = document["paths"]["/v1/topics/{topic}/messages"]["post"]["requestBody"]["content"]
    assert api.call("POST", "/v1/topics/flights/messages", content[JSON]["example"]).status == 200
    lines = content["application/x-ndjson"]["examples"]["lines"]["description"]
    assert lines.count("\n") == 2
    assert api.produce("flights", lines, "application/x-ndjson").status == 200
    for kind in (STRUCTURED, BATCHED):
        assert api.produce("flights", json.dumps(content[kind]["example"]), kind).status == 200
