"""ROUTE-6 with real processes: an ordered topic is expanded under load while the process that seals it is killed."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.e2e.test_two_brokers import Broker, call, until

KEYS = [f"k{number}" for number in range(12)]
GROUP = "billing"
#: What a client may be told while a process dies and its place is taken.
_AGAIN = {429, 500, 503}


class Keys:
    """A producer of a few keys: the next message when the one before was acknowledged, by whichever process answers."""

    def __init__(self, urls: list[str], topic: str, keys: list[str]) -> None:
        self.urls = urls
        self.keys = keys
        self.sent = dict.fromkeys(keys, 0)
        self._path = f"/v1/topics/{topic}/messages"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failed: list[object] = []
        self._thread.start()

    def _run(self) -> None:
        seq = 0
        while not self._stop.is_set():
            messages = [{"key": key, "body": f"{key}:{self.sent[key]}"} for key in self.keys]
            self._send({"messages": messages, "producer": {"id": f"p-{self.keys[0]}", "seq": seq}})
            seq += 1
            for key in self.keys:
                self.sent[key] += 1

    def _send(self, request: object) -> None:
        at = 0
        while True:
            try:
                reply = call(self.urls[at % len(self.urls)], "POST", self._path, request)
            except (OSError, urllib.error.URLError):
                at += 1
                continue
            if reply.status == 200:
                return
            if reply.status not in _AGAIN:
                self.failed.append(reply)
                self._stop.set()
                return
            at += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive() and not self.failed, self.failed


class Group:
    """Consumes all partitions in turn, as far as the service lets it, and checks each key's order."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.got: dict[str, list[int]] = {key: [] for key in KEYS}
        self._at: dict[str, int] = {}

    def take(self, url: str) -> int:
        """One round; how many messages came."""
        count = 0
        for partition in self.partitions(url):
            path = f"/v1/topics/{self.topic}/partitions/{quote(partition, safe='')}/messages"
            at = self._at.get(partition, 0)
            found = call(url, "GET", f"{path}?offset={at}&group={GROUP}&max_messages=200")
            if found.status != 200:
                assert found.status in _AGAIN, found
                continue
            for message in found.json["messages"]:
                key, _, number = message["body"].partition(":")
                self.got[key].append(int(number))
                assert self.got[key] == list(range(len(self.got[key]))), f"{key} came as {self.got[key][-5:]}"
                count += 1
            self._at[partition] = found.json["next_offset"]
            self._commit(url, partition)
        return count

    def partitions(self, url: str) -> list[str]:
        found = call(url, "GET", f"/v1/topics/{self.topic}")
        assert found.status == 200, found
        return [one["partition"] for one in found.json["partitions"]]

    def _commit(self, url: str, partition: str) -> None:
        offsets = {"offsets": {partition: self._at[partition]}}
        path = f"/v1/groups/{GROUP}/topics/{self.topic}/offsets"
        until(lambda: call(url, "PUT", path, offsets).status == 200, within_s=60)


def ends(broker: Broker) -> dict[str, int]:
    """The end offset of each partition."""
    found = broker.call("GET", "/v1/topics/orders")
    assert found.status == 200, found
    return {one["partition"]: one["max_offset"] for one in found.json["partitions"]}


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[list[Broker]]:
    """Two processes; the first is killed at its first seal, at the place that the test names."""
    monkeypatch.setenv("DELTAMQ_FAILPOINTS", f"{request.param}=kill@1")
    first = Broker(tmp_path / "warehouse", "broker-a")
    monkeypatch.delenv("DELTAMQ_FAILPOINTS")
    second = Broker(tmp_path / "warehouse", "broker-b")
    try:
        until(lambda: second.serves() == {"broker-a": first.url, "broker-b": second.url} == first.serves())
        yield [first, second]
    finally:
        first.process.close()
        second.process.close()


@pytest.mark.parametrize(
    "dying",
    [
        "seal.after_fence",
        pytest.param("fence.before_commit", marks=pytest.mark.long),
        pytest.param("seal.after_event", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_route_06_each_key_stays_in_order_when_the_sealing_process_is_killed(dying: list[Broker]) -> None:
    first, second = dying
    topic = {"partitions": 2, "order_strategy": "strict"}
    assert second.call("PUT", "/v1/topics/orders", topic).status == 201
    assert second.call("PUT", f"/v1/groups/{GROUP}", {"consume_from": "first"}).status == 201
    urls = [first.url, second.url]
    producers = [Keys(urls if at % 2 else urls[::-1], "orders", KEYS[at::3]) for at in range(3)]
    group = Group("orders")
    try:
        until(lambda: all(min(one.sent.values()) >= 2 for one in producers))
        group.take(second.url)
        with pytest.raises((OSError, urllib.error.URLError)):
            # The first process begins to seal, and is killed there: its client gets no answer.
            assert first.call("PUT", "/v1/topics/orders", {"partitions": 4}).status == 0
        until(lambda: len(group.partitions(second.url)) == 4)
        # Under load, until keys have moved: the process that is left has sealed what was not.
        until(lambda: all(end > 0 for end in ends(second).values()), within_s=60)
        group.take(second.url)
    finally:
        for one in producers:
            one.stop()
    sent = {key: count for one in producers for key, count in one.sent.items()}
    until(lambda: group.take(second.url) == 0 and {key: len(numbers) for key, numbers in group.got.items()} == sent)
