"""STATIC-8, 9, 11, 21 with real processes: queues are remapped under load while the process that seals is killed."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.static_calls import name_of, stored_in
from tests.e2e.test_two_brokers import Broker, call, until

#: What a client may be told while a process dies and its place is taken.
_AGAIN = {429, 500, 503}
QUEUES = 4
TOPIC = "/v1/topics/orders"


class Producer:
    """Sends to one logical queue: the next message when any process has acknowledged the one before."""

    def __init__(self, urls: list[str], queue: int) -> None:
        self.urls = urls
        self.queue = queue
        #: The logical offset that each message was said to have; -1 if it was undecided then.
        self.offsets: list[int] = []
        self.failed: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            seq = len(self.offsets)
            message = {"body": f"{self.queue}:{seq}", "partition": name_of(self.queue)}
            self._send({"messages": [message], "producer": {"id": f"p{self.queue}", "seq": seq}})

    def _send(self, request: object) -> None:
        at = 0
        while True:
            try:
                reply = call(self.urls[at % len(self.urls)], "POST", f"{TOPIC}/messages", request)
            except (OSError, urllib.error.URLError):
                at += 1
                continue
            if reply.status == 200:
                (placed,) = reply.json["ranges"]
                self.offsets.append(placed["base_offset"])
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


@pytest.mark.parametrize("mode", ["strict", "available"])
@pytest.mark.parametrize(
    "dying",
    [
        "seal.after_fence",
        pytest.param("fence.before_commit", marks=pytest.mark.long),
        pytest.param("seal.after_event", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_static_11_a_remapping_whose_process_is_killed_is_finished_by_the_other(
    dying: list[Broker], tmp_path: Path, mode: str
) -> None:
    first, second = dying
    wanted = {"static": True, "total_queues": QUEUES, "brokers": ["broker-a", "broker-b"]}
    assert second.call("PUT", TOPIC, wanted).status == 201
    urls = [first.url, second.url]
    producers = [Producer(urls if queue % 2 else urls[::-1], queue) for queue in range(QUEUES)]
    remap = {"brokers": ["broker-b"], "mode": mode}
    try:
        until(lambda: all(len(one.offsets) >= 3 for one in producers))
        with pytest.raises((OSError, urllib.error.URLError)):
            # The first process begins to seal, and is killed there: its client gets no answer.
            assert first.call("POST", f"{TOPIC}/remap", remap).status == 0
        before = [len(one.offsets) for one in producers]
        until(lambda: all(len(p.offsets) > n + 3 for p, n in zip(producers, before, strict=True)), within_s=60)
        again = second.call("POST", f"{TOPIC}/remap", remap)
        assert again.status == 200 and again.json["moved"] == [], again
        checked = second.call("POST", f"{TOPIC}/check", {})
        assert checked.json["complete"], checked
    finally:
        for one in producers:
            one.stop()
    shown: list[dict[str, Any]] = second.call("GET", TOPIC).json["logical_queues"]
    assert [one["segments"][-1]["broker"] for one in shown] == ["broker-b"] * QUEUES
    assert all(one["segments"][-1]["state"] == "leader" for one in shown)
    stored = stored_in(str(tmp_path / "warehouse"), "orders")
    for one in producers:
        rows = stored[one.queue]
        assert [body for _, body in rows] == [f"{one.queue}:{at}" for at in range(len(one.offsets))]
        assert [offset for offset, _ in rows] == one.offsets
        assert one.offsets == sorted(set(one.offsets))
        if mode == "strict":
            assert one.offsets == list(range(len(one.offsets))), "no hole"
