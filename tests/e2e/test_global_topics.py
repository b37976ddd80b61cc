"""Global topics over two clusters whose processes are killed in the middle of remappings (SPEC STATIC-11, 19, I15)."""

from __future__ import annotations

import http.client
import io
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deltamq import Producer
from deltamq.api.first_start import make_administrator
from deltamq.mq.client.cli import root as cli
from tests.api.running import config_for
from tests.api.two_clusters import name_of
from tests.e2e.service_process import ServiceProcess
from tests.e2e.test_two_brokers import Reply, call, until
from tests.free_ports import free_port

TOPIC = "orders"
NAMES = ("east", "west")


@dataclass
class Killable:
    """East and west as processes; one may have a failpoint at which it dies."""

    folder: Path
    env: pytest.MonkeyPatch
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in NAMES})
    processes: dict[str, ServiceProcess] = field(default_factory=dict)
    #: The administrators' keys, if the clusters have authentication.
    tokens: dict[str, str] = field(default_factory=dict)

    def start(self, name: str, failpoint: str = "") -> None:
        (other,) = set(NAMES) - {name}
        self.env.setenv("DELTAMQ_WAREHOUSE_CLUSTER", name)
        self.env.setenv("DELTAMQ_SERVICE_CLUSTERS", f"{other}=http://127.0.0.1:{self.ports[other]}")
        self.env.setenv("DELTAMQ_SERVICE_PORT", str(self.ports[name]))
        self.env.setenv("DELTAMQ_FAILPOINTS", failpoint)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self.processes[name] = ServiceProcess(folder / "warehouse", "--port", str(self.ports[name]))
        self.env.delenv("DELTAMQ_FAILPOINTS")

    def restart(self, name: str, failpoint: str = "") -> None:
        self.processes[name].close()
        self.start(name, failpoint)

    def call(self, name: str, method: str, path: str = "", body: object = None) -> Reply:
        path = f"/v1/topics/{TOPIC}{path}"
        return call(self.processes[name].url, method, path, body, 60.0, self.tokens.get(name))

    def guard(self) -> None:
        """Let both need keys, with a secret that they share."""
        self.env.setenv("DELTAMQ_SERVICE_AUTH", "true")
        self.env.setenv("DELTAMQ_SERVICE_CLUSTER_SECRET", "1" * 32)
        self.env.setenv("DELTAMQ_SERVICE_CLUSTERS_SHARED_SECRET", "2" * 32)
        for name in NAMES:
            config = config_for(self.folder / name / "warehouse", auth=True)
            self.tokens[name] = make_administrator(config, "admin")[1]

    def read(self, name: str, queue: int) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        offset = 0
        while True:
            path = f"/partitions/{queue}%40__global_logical_queue_broker__/messages?offset={offset}"
            answer: Any = self.call(name, "GET", path).json
            found += [(one["offset"], one["body"]) for one in answer["messages"]]
            if not answer["messages"] and answer["next_offset"] == offset:
                return found
            offset = answer["next_offset"]

    def close(self) -> None:
        for process in self.processes.values():
            process.close()


def both_running(clusters: Killable) -> Iterator[Killable]:
    try:
        for name in NAMES:
            clusters.start(name)
        asked = {"static": True, "scope": "global", "clusters": list(NAMES), "total_queues": 2}
        assert clusters.call("east", "PUT", "", asked).status == 201
        yield clusters
    finally:
        clusters.close()


@pytest.fixture
def guarded_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Killable]:
    clusters = Killable(tmp_path, monkeypatch)
    clusters.guard()
    yield from both_running(clusters)


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Killable]:
    yield from both_running(Killable(tmp_path, monkeypatch))


class Sender:
    """An idempotent producer that repeats each request, to one cluster after the other, until it has an answer."""

    def __init__(self, clusters: Killable, queue: int) -> None:
        self._clusters = clusters
        self._queue = queue
        self._stop = threading.Event()
        self.sent: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            body = f"{self._queue}-{len(self.sent)}"
            message = {"body": body, "partition": name_of(self._queue)}
            request = {"messages": [message], "producer": {"id": f"p{self._queue}", "seq": len(self.sent)}}
            attempt = 0
            while not self._accepted(NAMES[attempt % 2], request):
                attempt += 1
            self.sent.append(body)

    def _accepted(self, name: str, request: object) -> bool:
        try:
            reply = self._clusters.call(name, "POST", "/messages", request)
        except (OSError, http.client.HTTPException, ValueError):
            return False
        assert reply.status in (200, 503), reply
        return reply.status == 200

    def more(self, count: int = 5) -> None:
        """Wait for some more messages."""
        begin = len(self.sent)
        until(lambda: len(self.sent) >= begin + count)

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.sent


#: Which of the two dies, and where, while queue 0 moves from east, the home, to west, or back.
DEATHS = [("west", "global.after_adopt@2", "west"), ("west", "seal.after_fence", "east")]
#: The same, for `make faults`.
MORE_DEATHS = [
    ("east", "global.after_move", "west"),
    *[("east", point, "west") for point in ("seal.after_fence", "seal.after_event", "global.after_settle")],
    *[("east", point, "west") for point in ("global.after_hand_out@1", "global.after_hand_out@2")],
    ("west", "global.after_adopt@1", "west"),
    ("west", "global.after_adopt@2", "east"),
    ("west", "seal.after_event", "east"),
]


@pytest.mark.parametrize("mode", ["strict", pytest.param("available", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("dying", "point", "target"),
    [*DEATHS, *(pytest.param(*death, marks=pytest.mark.long) for death in MORE_DEATHS)],
)
def test_static_19_a_kill_at_any_step_of_a_remapping_between_clusters_loses_and_doubles_nothing(
    clusters: Killable, dying: str, point: str, target: str, mode: str
) -> None:
    (source,) = set(NAMES) - {target}
    wanted = {"clusters": [target], "mode": mode}
    if target == "east":
        assert clusters.call("west", "POST", "/remap", {"clusters": ["west"]}).status == 200
    at, _, nth = point.partition("@")
    clusters.restart(dying, f"{at}=kill{'@' + nth if nth else ''}")
    sender = Sender(clusters, 0)
    try:
        sender.more()
        try:
            reply = clusters.call("east", "POST", "/remap", wanted)
            assert reply.status in (409, 503), reply
        except (OSError, http.client.HTTPException):
            assert dying == "east"
        clusters.processes[dying].wait()
        clusters.restart(dying)
        finished = clusters.call(source, "POST", "/remap", wanted)
        assert finished.status == 200, finished
        sender.more()
    finally:
        sent = sender.stop()
    checked: Any = clusters.call("east", "POST", "/check").json
    assert checked["complete"], checked
    found = clusters.read("east", 0)
    assert [body for _, body in found] == sent, "each message once, in order"
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets)) and found == clusters.read("west", 0)
    if mode == "strict":
        assert offsets == list(range(len(offsets))), "no hole"


def test_static_21_a_request_of_both_clusters_is_stored_once_though_the_one_that_split_it_dies(
    clusters: Killable,
) -> None:
    messages = [{"body": f"m{at}", "partition": name_of(at % 2)} for at in range(6)]
    request = {"messages": messages, "producer": {"id": "p", "seq": 0}}
    clusters.restart("east", "ack.before_respond=kill")
    with pytest.raises((OSError, http.client.HTTPException)):
        clusters.call("east", "POST", "/messages", request)
    clusters.processes["east"].wait()
    clusters.restart("east")
    for name in ("west", "east"):
        reply: Any = clusters.call(name, "POST", "/messages", request)
        assert reply.status == 200 and reply.json["duplicate"] is True, reply
        for queue in (0, 1):
            assert [body for _, body in clusters.read(name, queue)] == [f"m{at}" for at in range(6) if at % 2 == queue]


@pytest.mark.long
def test_static_16_a_commit_that_is_cut_short_passes_no_message_and_is_finished_by_the_same_again(
    clusters: Killable,
) -> None:
    for target in ("east", "west", "east"):
        assert clusters.call("east", "POST", "/remap", {"clusters": [target]}).status == 200
        messages = [{"body": target, "partition": name_of(0)}] * 2
        assert clusters.call("west", "POST", "/messages", {"messages": messages}).status == 200
    path = f"/v1/groups/g/topics/{TOPIC}/offsets"

    def committed(name: str) -> int | None:
        shown: Any = call(clusters.processes[name].url, "GET", path).json
        found: int | None = shown["partitions"][0]["committed_offset"]
        return found

    def commit(name: str, offset: int) -> Reply:
        return call(clusters.processes[name].url, "PUT", path, {"offsets": {name_of(0): offset}})

    assert commit("west", 1).status == 200
    clusters.restart("west", "global.after_commit_part=kill")
    with pytest.raises((OSError, http.client.HTTPException)):
        commit("west", 5)  # the older part is west's, the newer one east's
    clusters.processes["west"].wait()
    clusters.restart("west")
    assert committed("east") in (1, 2), "west is done with its messages, and east is not told yet"
    assert commit("west", 5).status == 200
    for name in NAMES:
        clusters.processes[name].kill()
        clusters.restart(name)
    assert committed("east") == committed("west") == 5
    clusters.restart("west", "global.after_reset_part=kill")
    asked = (f"{path}/reset", {"to": {name_of(0): 3}})
    with pytest.raises((OSError, http.client.HTTPException)):
        call(clusters.processes["west"].url, "POST", *asked)
    clusters.processes["west"].wait()
    clusters.restart("west")
    assert call(clusters.processes["west"].url, "POST", *asked).status == 200
    assert committed("east") == committed("west") == 3


@pytest.mark.long
def test_sec_06_clusters_with_keys_go_on_after_a_kill_with_their_proofs(guarded_clusters: Killable) -> None:
    test_static_19_a_kill_at_any_step_of_a_remapping_between_clusters_loses_and_doubles_nothing(
        guarded_clusters, "west", "global.after_adopt@2", "west", "strict"
    )
    reply = call(guarded_clusters.processes["west"].url, "GET", f"/v1/topics/{TOPIC}")
    assert reply.status == 401


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("global.after_create", marks=pytest.mark.long),
        "global.after_hand_out@1",
        pytest.param("global.after_held", marks=pytest.mark.long),
    ],
)
def test_static_19_a_creation_that_was_killed_is_finished_by_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    clusters = Killable(tmp_path, monkeypatch)
    at, _, nth = point.partition("@")
    asked = {"static": True, "scope": "global", "clusters": list(NAMES), "total_queues": 2}
    try:
        clusters.start("west")
        clusters.start("east", f"{at}=kill{'@' + nth if nth else ''}")
        with pytest.raises((OSError, http.client.HTTPException)):
            clusters.call("east", "PUT", "", asked)
        clusters.processes["east"].wait()
        clusters.restart("east")
        assert clusters.call("east", "PUT", "", asked).status == 200
        checked: Any = clusters.call("west", "POST", "/check").json
        assert checked["complete"], checked
    finally:
        clusters.close()


def test_static_19_the_sdk_sends_keys_through_one_cluster_to_queues_of_both(clusters: Killable) -> None:
    with Producer(clusters.processes["west"].url) as producer:
        for number in range(40):
            producer.send(TOPIC, f"m{number}", key=f"k{number % 8}")
    found = [body for queue in (0, 1) for _, body in clusters.read("east", queue)]
    assert sorted(found) == sorted(f"m{number}" for number in range(40))
    assert all(clusters.read("west", queue) for queue in (0, 1)), "both clusters have some"


def test_static_19_the_command_line_creates_moves_checks_and_shows_a_global_topic(
    clusters: Killable, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, *arguments: str, status: int = 0, stdin: str = "") -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as end:  # in this process: each start of another one takes a second
            cli.main([*arguments, "--url", clusters.processes[name].url])
        sys.stdout.flush()
        out, err = capsysbinary.readouterr()
        assert int(end.value.code or 0) == status, (out, err)
        return out.decode()

    wide = ("--static", "--queues", "2", "--global", "--cluster", "east", "--cluster", "west")
    assert "2 logical queues in clusters west, east, home west" in run("west", "topic", "create", "receipts", *wide)
    run("east", "topic", "create", "receipts", "--static", "--queues", "2", "--global", status=2)
    lines = "".join(f'{{"body": "{number}", "key": "k{number % 5}"}}\n' for number in range(20))
    run("east", "produce", "receipts", stdin=lines)
    planned = json.loads(run("east", "topic", "remap", "receipts", "--cluster", "east", "--plan", "--json"))
    assert [(one["queue"], one["from"], one["to"]) for one in planned["moved"]] == [(1, "west", "east")]
    moved = run("east", "topic", "remap", "receipts", "--cluster", "east")
    assert "1 logical queue to move" in moved and "1 logical queue moved" in moved
    assert "no queue to move" in run("west", "topic", "remap", "receipts", "--cluster", "east")
    shown = run("west", "topic", "show", "receipts")
    assert name_of(1) in shown and "home west" in shown
    assert "complete" in run("west", "topic", "check", "receipts")
    consumed = [json.loads(line)["body"] for line in run("west", "consume", "receipts", "--json").splitlines()]
    assert sorted(map(int, consumed)) == list(range(20))
    clusters.processes["east"].stop()
    assert "cluster east" in run("west", "topic", "check", "receipts", status=1)
    assert json.loads(run("west", "topic", "repair", "receipts", "--plan", "--json"))["faults"]
