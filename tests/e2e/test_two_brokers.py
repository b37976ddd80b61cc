"""Two service processes on one warehouse: who serves what, takeover, fencing, giving back (SPEC META-1, META-2)."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.e2e.service_process import ServiceProcess

#: Short, so that a test waits for a lease in seconds; relations as by default.
_LEASE: dict[str, str] = {
    "DELTAMQ_SERVICE_LEASE_MS": "3000",
    "DELTAMQ_SERVICE_LEASE_RENEW_MS": "700",
    "DELTAMQ_SERVICE_LEASE_MARGIN_MS": "500",
    "DELTAMQ_QUEUE_INVISIBLE_MS_MIN": "100",
}
LEASE_S = 3.0


class Reply(msgspec.Struct, frozen=True):
    status: int
    json: Any

    @property
    def code(self) -> str | None:
        return self.json.get("code") if isinstance(self.json, dict) else None


def call(
    url: str, method: str, path: str, body: object = None, timeout_s: float = 30.0, token: str | None = None
) -> Reply:
    """One request on a connection of its own."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url + path, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text = answer.read()
            return Reply(answer.status, json.loads(text) if text else None)
    except urllib.error.HTTPError as error:
        return Reply(error.code, json.loads(error.read()))


def until(condition: Callable[[], object], within_s: float = 30.0) -> Any:
    """What `condition` returns when it holds."""
    deadline = time.monotonic() + within_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)


class Broker:
    """A process that was started for one broker."""

    def __init__(self, warehouse: Path, name: str) -> None:
        self.name = name
        self.process = ServiceProcess(warehouse, "--broker", name)

    @property
    def url(self) -> str:
        return self.process.url

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 30.0) -> Reply:
        return call(self.url, method, path, body, timeout_s)

    def serves(self) -> dict[str, str]:
        """Each broker's address, as this process knows it; of those that somebody serves."""
        found = self.call("GET", "/v1/cluster")
        assert found.status == 200, found
        return {one["broker"]: one["address"] for one in found.json["brokers"] if one["online"]}

    def meta_owner(self) -> str | None:
        meta = self.call("GET", "/v1/cluster").json["meta"]
        return None if meta is None else meta["address"]

    def epoch(self, broker: str) -> int:
        (found,) = [one for one in self.call("GET", "/v1/cluster").json["brokers"] if one["broker"] == broker]
        epoch: int = found["epoch"]
        return epoch

    def send(self, topic: str, *bodies: str, partition: str | None = None) -> Reply:
        messages = [{"body": body, **({"partition": partition} if partition else {})} for body in bodies]
        return self.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})

    def pop(self, topic: str, group: str, *, timeout_s: float = 30.0, **ask: object) -> Reply:
        return self.call("POST", f"/v1/groups/{group}/topics/{topic}/pop", ask, timeout_s)

    def ack(self, group: str, *handles: str) -> Reply:
        return self.call("POST", f"/v1/groups/{group}/ack", {"handles": list(handles)})


@dataclass
class Two:
    """Process a serves broker-a and the meta role, process b broker-b."""

    a: Broker
    b: Broker


@pytest.fixture
def two(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Two]:
    """Both; a test may arm failpoints of one of them: `parametrize("two", [{"a": "..."}], indirect=True)`.

    So may it give them another lease: `{"lease_ms": "..."}`.
    """
    with two_processes(tmp_path / "warehouse", **getattr(request, "param", {})) as found:
        yield found


@pytest.fixture(scope="module")
def unhurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Both, for tests that end neither."""
    with two_processes(tmp_path_factory.mktemp("two") / "warehouse") as found:
        yield found


@contextmanager
def two_processes(warehouse: Path, *, a: str = "", b: str = "", lease_ms: str = "") -> Iterator[Two]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as ended:
        for name, value in _LEASE.items():
            patch.setenv(name, value)
        if lease_ms:
            patch.setenv("DELTAMQ_SERVICE_LEASE_MS", lease_ms)
        patch.setenv("DELTAMQ_FAILPOINTS", a)
        one = Broker(warehouse, "broker-a")
        ended.callback(one.process.close)
        patch.setenv("DELTAMQ_FAILPOINTS", b)
        other = Broker(warehouse, "broker-b")
        ended.callback(other.process.close)
        patch.delenv("DELTAMQ_FAILPOINTS")
        until(lambda: one.serves() == {"broker-a": one.url, "broker-b": other.url} == other.serves())
        yield Two(one, other)


def _handles(reply: Reply) -> list[str]:
    assert reply.status == 200, reply
    return [message["handle"] for message in reply.json["messages"]]


def _bodies(reply: Reply) -> list[str]:
    assert reply.status == 200, reply
    return sorted(message["body"] for message in reply.json["messages"])


def _is_at(broker: Broker, topic: str, partition: str, offset: int) -> bool:
    return _offsets(broker, topic, "billing").get(partition) == offset


def _offsets(broker: Broker, topic: str, group: str) -> dict[str, int]:
    reply = broker.call("GET", f"/v1/groups/{group}/topics/{topic}/offsets")
    assert reply.status == 200, reply
    offsets: dict[str, int] = reply.json["offsets"]
    return offsets


@pytest.mark.promise("HOST-1")
def test_meta_01_clients_find_every_broker_by_one_call(unhurt: Two) -> None:
    assert unhurt.a.meta_owner() == unhurt.b.meta_owner() == unhurt.a.url
    hosts = unhurt.b.call("GET", "/v1/cluster").json["hosts"]
    assert {tuple(host["brokers"]): host["address"] for host in hosts} == {
        ("broker-a",): unhurt.a.url,
        ("broker-b",): unhurt.b.url,
    }


def test_route_02_a_topic_gets_both_brokers_whoever_makes_it(unhurt: Two, topic: str) -> None:
    assert unhurt.b.send(topic, "x").status == 200
    shown = unhurt.a.call("GET", f"/v1/topics/{topic}").json
    assert [one["partition"] for one in shown["partitions"]] == [f"{topic}@broker-a", f"{topic}@broker-b"]


def test_meta_02_any_process_appends_to_any_partition(unhurt: Two, topic: str) -> None:
    names = (f"{topic}@broker-a", f"{topic}@broker-b")
    for number, broker in enumerate((unhurt.a, unhurt.b) * 10):
        for name in names:
            assert broker.send(topic, f"{number}", partition=name).status == 200
    for broker in (unhurt.a, unhurt.b):
        for name in names:
            # What another process appended is seen when one reads at the end of what is known.
            path = f"/v1/topics/{topic}/partitions/{quote(name, safe='')}/messages?max_messages=100"
            broker.call("GET", f"{path}&offset=19&wait_ms=5000")

            def fetched(broker: Broker = broker, path: str = path) -> list[dict[str, Any]] | None:
                found: list[dict[str, Any]] = broker.call("GET", path).json["messages"]
                return found if len(found) >= 20 else None

            found = until(fetched)
            assert [(one["offset"], one["body"]) for one in found] == [(at, f"{at}") for at in range(20)]


def test_meta_01_a_pop_of_anothers_partition_is_answered_by_its_owner(unhurt: Two, topic: str) -> None:
    assert unhurt.a.send(topic, "x", "y", partition=f"{topic}@broker-b").status == 200
    popped = unhurt.a.pop(topic, "billing", partition=f"{topic}@broker-b")
    assert _bodies(popped) == ["x", "y"]
    assert unhurt.b.pop(topic, "billing", partition=f"{topic}@broker-b").json["messages"] == [], "one lane, one owner"
    assert unhurt.a.ack("billing", *_handles(popped)).json == {"acked": 2, "failed": []}
    for broker in (unhurt.a, unhurt.b):
        until(partial(_is_at, broker, topic, f"{topic}@broker-b", 2))


@pytest.mark.promise("HOST-1")
def test_meta_01_handles_of_both_brokers_are_acknowledged_at_either(unhurt: Two, topic: str) -> None:
    for name in (f"{topic}@broker-a", f"{topic}@broker-b"):
        assert unhurt.a.send(topic, "1", "2", "3", partition=name).status == 200
    handles = [handle for broker in (unhurt.a, unhurt.b) for handle in _handles(broker.pop(topic, "billing"))]
    assert len(handles) == 6, "each process gives what its own broker has"
    acked = unhurt.b.ack("billing", *handles[:2], "forged", *handles[2:4])
    assert acked.json == {"acked": 4, "failed": [{"handle": "forged", "code": "handle_invalid"}]}
    nacked = unhurt.a.call("POST", "/v1/groups/billing/nack", {"handles": handles[4:5], "delay_ms": 0})
    assert nacked.json == {"nacked": 1, "failed": []}
    changed = unhurt.a.call("POST", "/v1/groups/billing/invisible", {"handle": handles[5], "invisible_ms": 5_000})
    assert changed.status == 200
    assert unhurt.a.ack("billing", handles[5]).json["failed"] == [{"handle": handles[5], "code": "handle_expired"}]
    # A pop acknowledges what is another's, too, and says what was refused there.
    refused = unhurt.a.pop(topic, "billing", ack=[handles[5], changed.json["handle"]])
    assert refused.json["failed_acks"] == [{"handle": handles[5], "code": "handle_expired"}]


@pytest.mark.promise("HOST-1")
def test_cons_04_offsets_of_both_brokers_are_committed_and_read_at_either(unhurt: Two, topic: str) -> None:
    for name in (f"{topic}@broker-a", f"{topic}@broker-b"):
        assert unhurt.a.send(topic, *"abc", partition=name).status == 200
    path = f"/v1/groups/billing/topics/{topic}/offsets"
    wanted = {f"{topic}@broker-a": 2, f"{topic}@broker-b": 3}
    assert unhurt.b.call("PUT", path, {"offsets": wanted}).json["offsets"] == wanted
    for broker in (unhurt.a, unhurt.b):
        assert _offsets(broker, topic, "billing") == wanted
        topics = broker.call("GET", "/v1/groups/billing").json["topics"]
        assert {one["topic"]: one["lag"] for one in topics}[topic] == 1
    again = unhurt.a.call("POST", f"{path}/reset", {"to": {f"{topic}@broker-b": 1}})
    assert again.status == 200
    for broker in (unhurt.a, unhurt.b):
        assert _offsets(broker, topic, "billing") == {f"{topic}@broker-a": 2, f"{topic}@broker-b": 1}
    assert _bodies(unhurt.a.pop(topic, "billing", partition=f"{topic}@broker-b")) == ["b", "c"]


@pytest.mark.promise("HOST-2")
@pytest.mark.parametrize("two", [{"lease_ms": "300000"}], indirect=True)
def test_meta_01_a_killed_process_is_taken_over_at_once_on_its_machine(two: Two) -> None:
    """Nobody waits for the lease of a process that is not there."""
    assert two.a.send("orders", "x", "y", partition="orders@broker-b").status == 200
    done, _ = _handles(two.b.pop("orders", "billing", max_messages=2))
    assert two.b.ack("billing", done).json["acked"] == 1
    before = two.a.epoch("broker-b")
    two.b.process.kill()
    until(lambda: two.a.serves().get("broker-b") == two.a.url)
    assert two.a.epoch("broker-b") > before
    again = until(lambda: two.a.pop("orders", "billing", partition="orders@broker-b").json.get("messages"))
    assert "y" in {message["body"] for message in again}, "what was only in its memory is delivered again"


@pytest.mark.promise("HOST-7")
def test_meta_01_the_meta_role_moves_and_a_restarted_process_gets_its_broker_back(two: Two) -> None:
    two.a.process.kill()
    until(lambda: two.b.meta_owner() == two.b.url)
    assert two.b.send("orders", "x", partition="orders@broker-a").status in (200, 404), "it was not made before"
    two.a.process.start()
    until(lambda: two.a.serves() == {"broker-a": two.a.url, "broker-b": two.b.url} == two.b.serves())
    assert two.a.meta_owner() == two.b.url, "the meta role stays where it is"
    assert two.a.send("orders", "x", partition="orders@broker-a").status == 200
    assert _bodies(two.a.pop("orders", "billing", partition="orders@broker-a"))[-1:] == ["x"]


@pytest.mark.promise("HOST-5")
def test_meta_01_what_is_in_flight_outlives_a_clean_stop_and_giving_back(two: Two) -> None:
    """A process that stops, or passes a broker on, stores what only its memory knew: no lease ends early."""
    assert two.a.send("orders", "x", partition="orders@broker-b").status == 200
    (handle,) = _handles(two.b.pop("orders", "billing", invisible_ms=60_000))
    assert two.b.process.stop() == 0
    until(lambda: two.a.serves().get("broker-b") == two.a.url)
    taken = until(lambda: (r := two.a.pop("orders", "billing", partition="orders@broker-b")).status == 200 and r)
    assert taken.json["messages"] == []
    two.b.process.start()
    until(lambda: two.a.serves().get("broker-b") == two.b.url)
    empty = until(lambda: (r := two.b.pop("orders", "billing", partition="orders@broker-b")).status == 200 and r)
    assert empty.json["messages"] == []
    assert two.a.ack("billing", handle).json == {"acked": 1, "failed": []}


@pytest.mark.promise("HOST-4")
@pytest.mark.parametrize("order", [True, pytest.param("key", marks=pytest.mark.long)])
def test_pop_16_leases_in_order_outlive_a_takeover_and_the_giving_back(two: Two, order: object) -> None:
    """The owner is killed, and comes back: a client keeps its messages, and renews and acknowledges at either."""
    assert two.a.send("orders", "x", "y", partition="orders@broker-b").status == 200
    ask: dict[str, Any] = {"partition": "orders@broker-b", "order": order, "max_messages": 2}
    first, second = _handles(two.b.pop("orders", "billing", invisible_ms=60_000, **ask))
    two.b.process.kill()
    until(lambda: two.a.serves().get("broker-b") == two.a.url)
    renewed = until(lambda: (r := _renew(two.a, first)).status == 200 and r).json["handle"]
    assert _pop_when_served(two.a, ask) == []
    two.b.process.start()
    until(lambda: two.b.serves().get("broker-b") == two.b.url == two.a.serves().get("broker-b"))
    assert _pop_when_served(two.b, ask) == []
    assert two.a.ack("billing", first).json["failed"] == [{"handle": first, "code": "handle_expired"}], "it was renewed"
    assert two.a.ack("billing", renewed, second).json == {"acked": 2, "failed": []}
    assert _offsets(two.b, "orders", "billing") == {"orders@broker-b": 2}


def _renew(at: Broker, handle: str) -> Reply:
    return at.call("POST", "/v1/groups/billing/invisible", {"handle": handle, "invisible_ms": 50_000})


def _pop_when_served(at: Broker, ask: dict[str, Any]) -> list[Any]:
    """What a pop gives as soon as the broker's owner answers."""
    reply = until(lambda: (r := at.pop("orders", "billing", **ask)).status == 200 and r)
    messages: list[Any] = reply.json["messages"]
    return messages


@pytest.mark.promise("HOST-6")
def test_meta_02_a_process_that_slept_serves_nothing_of_what_others_took_over(two: Two) -> None:
    """SIGSTOP for longer than a lease, then SIGCONT: fenced, and a new life that gets its broker back (fault F3)."""
    assert two.a.send("orders", "1", "2", "3", "4", partition="orders@broker-b").status == 200
    (stale,) = _handles(two.b.pop("orders", "billing", max_messages=1, invisible_ms=60_000))
    host = {one["host"] for one in two.b.call("GET", "/v1/cluster").json["hosts"] if one["address"] == two.b.url}
    two.b.process.pause()
    began = time.monotonic()
    until(lambda: two.a.serves().get("broker-b") == two.a.url, within_s=3 * LEASE_S)
    assert time.monotonic() - began > LEASE_S - 1.5, "its lock said that it was alive, so the lease was waited for"
    taken = _handles(until(lambda: (r := two.a.pop("orders", "billing", max_messages=4)).json.get("messages") and r))
    assert len(taken) == 4
    two.b.process.resume()
    # Straight after: it says that it cannot know, or sends it to who can, but never gives what is another's.
    first = two.b.pop("orders", "billing", partition="orders@broker-b", max_messages=4)
    assert first.status == 503 or first.json["messages"] == [], first
    until(lambda: two.a.serves() == {"broker-a": two.a.url, "broker-b": two.b.url} == two.b.serves())
    now = {one["host"] for one in two.a.call("GET", "/v1/cluster").json["hosts"] if one["address"] == two.b.url}
    assert now != host, "it lives anew"
    refused = until(lambda: (r := two.b.ack("billing", stale)).status == 200 and r)
    assert refused.json["failed"] == [{"handle": stale, "code": "handle_expired"}]
    assert two.b.ack("billing", *taken).json == {"acked": 4, "failed": []}
    until(lambda: _offsets(two.a, "orders", "billing").get("orders@broker-b") == 4)


# Brokers are begun twice at a: its own when it starts, then b's; it takes over once.
@pytest.mark.promise("HOST-2")
@pytest.mark.parametrize(
    "two",
    [
        pytest.param({"a": "lease.after_acquire=kill"}, id="taken", marks=pytest.mark.long),
        pytest.param({"a": "lease.after_fence=kill@2"}, id="fenced"),
    ],
    indirect=True,
)
def test_meta_01_a_takeover_that_is_killed_is_taken_up_by_the_next(two: Two) -> None:
    assert two.a.send("orders", "x", "y", partition="orders@broker-b").status == 200
    assert len(_handles(two.b.pop("orders", "billing"))) == 2
    done = {"offsets": {"orders@broker-b": 1}}
    assert two.b.call("PUT", "/v1/groups/billing/topics/orders/offsets", done).status == 200, "it is durable now"
    two.b.process.kill()
    two.a.process.wait()
    two.a.process.start()
    until(lambda: two.a.serves() == {"broker-a": two.a.url, "broker-b": two.a.url})
    left = until(lambda: two.a.pop("orders", "billing", partition="orders@broker-b").json.get("messages"))
    assert [message["body"] for message in left] == ["y"], "what was stored stays so"


@pytest.mark.promise("HOST-5")
@pytest.mark.parametrize("two", [{"a": "lease.before_release=kill"}], indirect=True)
def test_meta_01_a_giving_back_that_is_killed_loses_nothing_that_was_stored(two: Two) -> None:
    assert two.a.send("orders", "x", partition="orders@broker-b").status == 200
    two.b.process.kill()
    ask: dict[str, Any] = {"partition": "orders@broker-b", "invisible_ms": 60_000}
    (popped,) = until(lambda: two.a.pop("orders", "billing", **ask).json.get("messages"))
    two.b.process.start()
    two.a.process.wait()
    until(lambda: two.b.serves() == {"broker-a": two.b.url, "broker-b": two.b.url})
    again = until(lambda: (r := two.b.pop("orders", "billing", partition="orders@broker-b")).status == 200 and r)
    assert again.json["messages"] == [], "its lease goes on: it was stored before the role was to go"
    assert two.b.ack("billing", popped["handle"]).json == {"acked": 1, "failed": []}


@pytest.mark.promise("HOST-6")
@pytest.mark.parametrize("two", [{"b": "pop.before_respond=stop@1"}], indirect=True)
def test_meta_02_an_answer_that_slept_past_the_lease_does_not_leave(two: Two) -> None:
    """Stopped with the messages in its hands: when it wakes up, they are another's."""
    assert two.a.send("orders", "x", partition="orders@broker-b").status == 200
    answers: list[Reply] = []
    asking = threading.Thread(
        target=lambda: answers.append(two.b.pop("orders", "billing", partition="orders@broker-b", timeout_s=60))
    )
    asking.start()
    until(lambda: two.a.serves().get("broker-b") == two.a.url, within_s=5 * LEASE_S)
    taken = until(lambda: two.a.pop("orders", "billing", partition="orders@broker-b").json.get("messages"))
    two.b.process.resume()
    asking.join(60)
    assert [message["body"] for message in taken] == ["x"]
    assert (answers[0].status, answers[0].code) == (503, "lease_lost")
