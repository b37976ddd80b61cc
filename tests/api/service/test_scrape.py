"""The worst groups, the largest partitions, disk, certificate and process in /metrics (SPEC LOOK-11)."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from tests.api.running import Api, config_for, running, until
from tests.certificates import Authority

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)


def _metrics(api: Api, query: str = "") -> dict[str, dict[str, float]]:
    """Return the samples by name, each by its labels as they stand there."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _SAMPLE.findall(api.call("GET", f"/metrics{query}").body.decode()):
        found.setdefault(name, {})[labels] = float(value)
    return found


def test_look_11_labels_are_bounded_and_totals_hold_all(tmp_path: Path) -> None:
    with running(config_for(tmp_path, metrics_top=2)) as api:
        for number in range(1, 5):
            topic = f"topic-{number}"
            api.put_topic(topic, partitions=1)
            api.send(topic, *["x" * 10_000 * number] * number)
            api.call(
                "POST", f"/v1/groups/group-{number}/topics/{topic}/pop", {"client_id": "w", "max_messages": number}
            )
        # The gauges are two seconds old at most: another look, such as the history's, may have read them before.
        until(lambda: _metrics(api).get("deltamq_clients") == {"": 4.0})
        shown = _metrics(api)
        worst = {f'group="group-{number}",topic="topic-{number}"': float(number) for number in (3, 4)}
        assert shown["deltamq_group_lag"] == worst and shown["deltamq_lag_messages"] == {"": 10.0}
        assert len(shown["deltamq_group_oldest_seconds"]) == 2 and shown["deltamq_oldest_seconds"][""] > 0
        assert shown["deltamq_group_in_flight_messages"] == {'group="group-4"': 4.0, 'group="group-3"': 3.0}
        assert len(shown["deltamq_group_clients"]) == 2 and shown["deltamq_clients"] == {"": 4.0}
        largest = {labels.partition('topic="')[2].rstrip('"') for labels in shown["deltamq_partition_bytes"]}
        assert largest == {"topic-3", "topic-4"}
        assert shown["deltamq_stored_bytes"][""] > sum(shown["deltamq_partition_bytes"].values())
        assert shown["deltamq_data_files"][""] >= 4
        one = _metrics(api, "?topic=topic-1")
        assert one["deltamq_group_lag"] == {'group="group-1",topic="topic-1"': 1.0}, (
            "a topic is shown whatever its rank"
        )


def test_look_11_shows_the_process_its_disk_its_lease_and_its_commits(tmp_path: Path) -> None:
    with running(config_for(tmp_path / "warehouse")) as api:
        api.send("orders", "a")
        shown = _metrics(api)
        path = f'path="{tmp_path / "warehouse"}"'
        size, used, free = (shown[f"deltamq_disk_{what}_bytes"][path] for what in ("size", "used", "free"))
        assert size >= used and size > free > 0
        assert 0 < shown["deltamq_lease_left_seconds"][""] <= api.service.settings.lease_ms / 1_000
        assert shown["deltamq_commit_seconds_count"][""] == shown["deltamq_commits_total"][""] == 1
        assert 0 < shown["deltamq_commit_seconds_sum"][""] < 60
        assert shown["process_open_fds"][""] > 0 and shown["process_resident_memory_bytes"][""] > 0
        assert "deltamq_loop_delay_seconds_count" in shown and "python_gc_collections_total" in shown
        (version,) = shown["deltamq_build_info"]
        assert version == f'version="{api.call("GET", "/v1/cluster").json["version"]}"'
        assert "deltamq_certificate_end_timestamp_seconds" not in shown


def test_look_29_says_how_long_commits_are_with_the_store(tmp_path: Path) -> None:
    with running(config_for(tmp_path / "warehouse")) as api:
        api.put_topic("orders", partitions=1)
        before = _metrics(api)
        for _ in range(2):
            sent = {"Producer-Id": "p", "Producer-Seq": "1"}
            reply = api.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "a"}]}, **sent)
            assert reply.status == 200, reply
        shown = _metrics(api)

        def grown(name: str) -> float:
            return shown[name][""] - before.get(name, {}).get("", 0.0)

        assert grown("deltamq_commits_total") == grown("deltamq_commit_seconds_count") == 2
        assert grown("deltamq_commit_publish_seconds_count") == 1, "a repeat stores nothing"
        assert 0 < grown("deltamq_commit_publish_seconds_sum") < grown("deltamq_commit_seconds_sum")


def test_look_11_says_when_the_certificate_ends_and_survives_its_loss(tmp_path: Path) -> None:
    pair = Authority(tmp_path / "ca").server()
    config = config_for(tmp_path / "warehouse", tls_cert=pair.cert, tls_key=pair.key)
    with running(config) as found:
        api = Api(found.port, found.service, ca=str(tmp_path / "ca" / "ca.pem"))
        (end_s,) = _metrics(api)["deltamq_certificate_end_timestamp_seconds"].values()
        now_s = datetime.datetime.now(datetime.UTC).timestamp()
        assert end_s - now_s == pytest.approx(86_400, abs=3_600)
        Path(pair.cert).write_text("no certificate")
        assert "deltamq_certificate_end_timestamp_seconds" not in _metrics(api)
