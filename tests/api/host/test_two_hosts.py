"""Two services on one warehouse, in one process: what is sent on, what is joined, and what nobody answers (META-1)."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from deltamq.api.host.peers import Call
from deltamq.api.ports import Ports
from deltamq.api.wire.cloud_events import BATCHED, STRUCTURED
from deltamq.mq.errors import DeltaMQError, Unavailable
from deltamq.mq.meta.brokers import META_ROLE, HostLeft, decide_takeover
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.tables.clock import SystemClock
from tests.api.exclusive import Member
from tests.api.raw_pop import RawPop
from tests.api.running import ARROW, Api, Reply, config_for, running, until
from tests.set_clock import SetClock

T = TypeVar("T")


class Two(NamedTuple):
    """`a` serves broker-a and the meta role, `b` broker-b."""

    a: Api
    b: Api

    @property
    def address_of_b(self) -> str:
        return self.b.service.hosting.address


def _see_each_other(a: Api, b: Api) -> bool:
    return all(
        api.service.meta.now.brokers.available == ("broker-a", "broker-b") for api in (a, b)
    ) and b.service.hosting.hosts("broker-b")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    warehouse = tmp_path_factory.mktemp("two") / "warehouse"
    with (
        running(config_for(warehouse, brokers=("broker-a",))) as a,
        running(config_for(warehouse, brokers=("broker-b",))) as b,
    ):
        until(lambda: _see_each_other(a, b))
        yield Two(a, b)


def on_loop(api: Api, work: Coroutine[Any, Any, T]) -> T:
    """The result of work on a service's own loop."""
    return asyncio.run_coroutine_threadsafe(work, api.service.loop).result(30)


def _pop(api: Api, topic: str, *, accept: str = "application/json", **ask: object) -> Reply:
    # What another process appended is seen a moment later: a pop that waits does not miss it.
    ask.setdefault("wait_ms", 1_000)
    return api.call("POST", f"/v1/groups/g/topics/{topic}/pop", ask, Accept=accept)


def _handles(reply: Reply) -> list[str]:
    return [message["handle"] for message in reply.json["messages"]]


def _send_to(api: Api, topic: str, partition: str, *bodies: str) -> None:
    messages: list[dict[str, object] | str] = [{"body": body, "partition": partition} for body in bodies]
    sent = api.send(topic, *messages)
    assert sent.status == 200, sent


def test_meta_01_the_cluster_is_shown_alike_by_all(two: Two) -> None:
    shown = [api.call("GET", "/v1/cluster").json for api in two]
    for one in shown:
        assert [(b["broker"], b["address"], b["roles"], b["online"]) for b in one["brokers"]] == [
            ("broker-a", two.a.service.hosting.address, ["broker", "meta"], True),
            ("broker-b", two.address_of_b, ["broker"], True),
        ]
        assert one["meta"]["host"] == two.a.service.hosting.id
    assert [one["host"] for one in shown] == [api.service.hosting.id for api in two]


@pytest.mark.parametrize("count", [1, 3])
def test_meta_01_what_one_process_acknowledged_any_other_gives_back_at_once(two: Two, topic: str, count: int) -> None:
    two.a.put_topic(topic, partitions=2)
    offsets = dict.fromkeys((f"{topic}@broker-a", f"{topic}@broker-b"), 0)
    for writer, reader in (two, two[::-1]) * 3:
        for partition, at in offsets.items():
            # The reader has just looked: what it knows is fresh, and yet too old.
            assert reader.fetch(topic, partition, f"?offset={at}").json["status"] == "no_new_message"
            _send_to(writer, topic, partition, *map(str, range(count)))
            offsets[partition] = at + count
            found = reader.fetch(topic, partition, f"?offset={at + count - 1}").json
            assert (found["status"], found["max_offset"]) == ("found", at + count)


def test_meta_01_a_pop_without_a_partition_takes_what_the_asked_process_serves(two: Two, topic: str) -> None:
    for broker in ("broker-a", "broker-b"):
        _send_to(two.a, topic, f"{topic}@{broker}", broker)
    assert [m["body"] for m in _pop(two.a, topic).json["messages"]] == ["broker-a"]
    assert [m["body"] for m in _pop(two.b, topic).json["messages"]] == ["broker-b"]


def test_pop_20_a_pop_that_is_sent_on_is_repeated_there(two: Two, topic: str) -> None:
    two.b.put_topic(topic, partitions=2)
    (name,) = [name for name in two.b.partitions(topic) if name.endswith("@broker-b")]
    _send_to(two.a, topic, name, "x", "y")
    lost = _pop(two.a, topic, partition=name, order=True, max_messages=1, attempt_id="1")
    for api in two:
        again = _pop(api, topic, partition=name, order=True, max_messages=1, attempt_id="1")
        assert [m["body"] for m in again.json["messages"]] == ["x"]
    acked = two.a.call("POST", "/v1/groups/g/ack", {"handles": _handles(lost) + _handles(again)}).json
    assert [one["handle"] for one in acked["failed"]] == _handles(lost) and acked["acked"] == 1


def test_pop_20_a_waiting_pop_that_was_sent_on_ends_when_it_is_repeated(two: Two, topic: str) -> None:
    two.b.put_topic(topic, partitions=2)
    (name,) = [name for name in two.b.partitions(topic) if name.endswith("@broker-b")]
    ask = partial(_pop, two.a, topic, partition=name, order=True, wait_ms=10_000, attempt_id="1")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask)
        until(lambda: two.b.service.lanes.waiting == 1)
        second = pool.submit(ask)
        assert first.result(30).json["messages"] == []
        _send_to(two.a, topic, name, "x")
        assert [m["body"] for m in second.result(30).json["messages"]] == ["x"]


def test_meta_01_a_pop_is_sent_on_when_the_topic_is_all_elsewhere(two: Two, topic: str) -> None:
    two.b.put_topic(topic, partitions=2)
    names = [name for name in two.b.partitions(topic) if name.endswith("@broker-b")]
    _send_to(two.a, topic, names[0], "x")
    found = _pop(two.a, topic, partition=names[0])
    assert [m["body"] for m in found.json["messages"]] == ["x"]
    assert found.headers["content-type"] == "application/json"


def test_cons_15_a_pop_that_is_sent_on_gives_events_as_well(two: Two, topic: str) -> None:
    two.b.put_topic(topic, partitions=2)
    names = [name for name in two.b.partitions(topic) if name.endswith("@broker-b")]
    _send_to(two.a, topic, names[0], "x", "y", "z")
    one = _pop(two.a, topic, partition=names[0], accept=STRUCTURED)
    assert (one.json["data"], one.json["mqpartition"], one.headers["mq-rest"]) == ("x", names[0], "2")
    others = _pop(two.a, topic, partition=names[0], accept=BATCHED, ack=[one.json["mqhandle"], "no handle"])
    assert ([event["data"] for event in others.json], others.headers["mq-failed"]) == (["y", "z"], "1")


def test_rely_8_a_pop_whose_answer_there_is_no_room_for_is_not_sent_on(two: Two, topic: str) -> None:
    """The other process would hide messages that the client does not get."""
    two.b.put_topic(topic, partitions=2)
    names = [name for name in two.b.partitions(topic) if name.endswith("@broker-b")]
    _send_to(two.b, topic, names[0], "x")
    answers, in_flight = two.a.service.answers, two.b.service.lanes.in_flight_everywhere
    before = in_flight()

    async def hold(count: int) -> None:
        answers.bytes += count

    held = answers._bytes_max - 10
    on_loop(two.a, hold(held))
    try:
        refused = _pop(two.a, topic, partition=names[0])
        assert (refused.status, refused.json["code"]) == (429, "queue_full") and refused.headers["retry-after"]
        assert in_flight() == before
    finally:
        on_loop(two.a, hold(-held))
    (found,) = _pop(two.a, topic, partition=names[0]).json["messages"]
    assert (found["body"], found["delivery_attempt"]) == ("x", 1)
    until(lambda: answers.bytes == 0)


def test_meta_01_a_pop_without_a_body_or_with_nulls_is_sent_on(two: Two, topic: str) -> None:
    (home,) = [view["partition"] for view in two.a.put_topic(topic, partitions=1)["partitions"]]
    asked = two.b if home.endswith("@broker-a") else two.a
    _send_to(asked, topic, home, "x", "y")
    path = f"/v1/groups/g/topics/{topic}/pop"
    until(lambda: two.a.stored(topic) == two.b.stored(topic) == {home: 2})
    first = asked.call("POST", path, {"max_messages": 1, "wait_ms": None, "ack": None})
    rest = asked.call("POST", path)
    assert [m["body"] for popped in (first, rest) for m in popped.json["messages"]] == ["x", "y"]


def test_pop_01_a_cancelled_pop_of_another_process_is_answered(two: Two, topic: str) -> None:
    """The other process is told to wait a second at a time, so the client need not wait for the end of its pop."""
    two.b.put_topic(topic, partitions=2)
    two.a.call("PUT", "/v1/groups/g", {})
    name = next(name for name in two.b.partitions(topic) if name.endswith("@broker-b"))
    pop = RawPop(two.a, "g", topic, partition=name)
    until(lambda: two.b.service.lanes.waiting)
    pop.cancel()
    assert pop.bodies() == []
    again = RawPop(two.a, "g", topic, partition=name)
    until(lambda: two.b.service.lanes.waiting)
    again.cancel()
    _send_to(two.b, topic, name, "x")
    assert again.bodies() == ["x"], "what it found before it ended is not lost"


def test_pop_08_a_pop_acknowledges_everywhere_and_says_what_was_refused(two: Two, topic: str) -> None:
    """Handles of both processes and forged ones, in pops that are answered here and there, as JSON and as Arrow."""
    for accept in ("application/json", ARROW):
        for asked, other, here, there in (
            (two.a, two.b, "broker-a", "broker-b"),
            (two.b, two.a, "broker-b", "broker-a"),
        ):
            for broker in (here, there):
                _send_to(asked, topic, f"{topic}@{broker}", "1", "2")
            ours, theirs = _handles(_pop(asked, topic)), _handles(_pop(other, topic))
            assert len(ours) == len(theirs) == 2
            gone = [ours[0], theirs[0]]
            assert asked.call("POST", "/v1/groups/g/dead", {"handles": gone}).json["dead"] == 2
            for partition in (None, f"{topic}@{here}", f"{topic}@{there}"):
                left = [ours[1], theirs[1]] if partition is None else []
                popped = _pop(asked, topic, accept=accept, partition=partition, ack=[*gone, "forged", *left], wait_ms=0)
                assert popped.status == 200, popped
                assert sorted(_failed(popped, accept)) == sorted(
                    [(gone[0], "handle_expired"), (gone[1], "handle_expired"), ("forged", "handle_invalid")]
                )
            again = asked.call("POST", "/v1/groups/g/ack", {"handles": [ours[1], theirs[1]]})
            assert again.json["acked"] == 2, "acknowledging twice is harmless"


def _failed(popped: Reply, accept: str) -> list[tuple[str, str]]:
    if accept == ARROW:
        failed = json.loads(popped.table.schema.metadata[b"mq-failed-acks"])
        assert popped.headers["mq-failed"] == str(len(failed))
    else:
        failed = popped.json["failed_acks"]
    return [(one["handle"], one["code"]) for one in failed]


def test_meta_01_a_request_is_sent_on_once(two: Two, topic: str) -> None:
    _send_to(two.a, topic, f"{topic}@broker-b", "x")
    reply = two.a.call(
        "POST", f"/v1/groups/g/topics/{topic}/pop", {"partition": f"{topic}@broker-b"}, Mq_Forwarded="another"
    )
    assert (reply.status, reply.json["code"], reply.headers["retry-after"]) == (503, "not_owner", "1")
    assert reply.json["address"] == two.address_of_b


def test_meta_01_what_one_process_was_told_the_other_knows_when_it_is_asked(two: Two, topic: str) -> None:
    """A request that is sent on says how much of the metadata its sender has seen."""
    for number in range(8):
        name = f"{topic}-{number}"
        _send_to(two.a, name, f"{name}@broker-b", "x")
        assert [m["body"] for m in _pop(two.a, name, partition=f"{name}@broker-b").json["messages"]] == ["x"]


def test_cons_04_a_backlog_of_both_is_lag_whoever_was_told_of_the_client(two: Two, topic: str) -> None:
    for broker in ("broker-a", "broker-b"):
        _send_to(two.a, topic, f"{topic}@{broker}", "x", "y")
    assert two.b.call("PUT", f"/v1/groups/{topic}", {}).status == 201
    Member(two.b, topic, topic, "c0").beat()
    for api in two:
        shown = api.call("GET", f"/v1/groups/{topic}").json["topics"]
        assert [(one["topic"], [p["lag"] for p in one["partitions"]]) for one in shown] == [(topic, [2, 2])]


def test_pop_15_a_wait_at_another_process_ends_with_its_client(two: Two, topic: str) -> None:
    _send_to(two.a, topic, f"{topic}@broker-b", "x")
    assert len(_handles(_pop(two.a, topic, partition=f"{topic}@broker-b"))) == 1
    answers: list[Reply] = []
    ask = partial(_pop, two.a, topic, partition=f"{topic}@broker-b", wait_ms=20_000)
    waiting = threading.Thread(target=lambda: answers.append(ask()))
    waiting.start()
    until(lambda: two.b.service.lanes.group_topic(*_ids(two.b, topic)).waiters)
    _send_to(two.a, topic, f"{topic}@broker-b", "y")
    waiting.join(30)
    assert [m["body"] for m in answers[0].json["messages"]] == ["y"]


def test_pop_15_a_wait_goes_on_at_a_broker_that_its_process_takes_over(tmp_path: Path) -> None:
    answers: list[Reply] = []
    with running(config_for(tmp_path, brokers=("broker-a",))) as a:
        with running(config_for(tmp_path, brokers=("broker-b",))) as b:
            until(lambda: _see_each_other(a, b))
            a.put_topic("orders", partitions=2)
            began = time.monotonic()
            waiting = threading.Thread(target=lambda: answers.append(_pop(a, "orders", wait_ms=20_000)))
            waiting.start()
            until(lambda: a.service.lanes.waiting)
        until(lambda: a.service.hosting.hosts("broker-b"))
        _send_to(a, "orders", "orders@broker-b", "x")
        waiting.join(60)
        assert time.monotonic() - began < 20, "it was not woken"
    assert [m["body"] for m in answers[0].json["messages"]] == ["x"]


def _ids(api: Api, topic: str) -> Any:
    return api.service.meta.now.topics.topic(topic), api.service.meta.now.groups.group("g")


def test_meta_01_a_process_that_cannot_be_reached_is_503(two: Two) -> None:
    async def forward() -> None:
        await two.a.service.peers.forward("http://127.0.0.1:9", "GET", "/readyz", [], b"", 5.0)

    with pytest.raises(Unavailable) as refused:
        on_loop(two.a, forward())
    assert refused.value.code == "broker_unavailable"


def test_meta_01_forwarding_keeps_path_body_and_answer(two: Two, topic: str) -> None:
    """A name with every character that is encoded, a body, a problem with its fields."""
    name = f"%RETRY%{topic}|x"
    target = "/v1/topics/%25RETRY%25" + f"{topic}%7Cx?a=%2B"

    async def forward() -> Any:
        headers = [(b"content-type", b"application/json"), (b"host", b"elsewhere"), (b"connection", b"close")]
        return await two.a.service.peers.forward(two.address_of_b, "GET", target, headers, b"", 5.0)

    answer = on_loop(two.a, forward())
    assert answer.status == 404 and json.loads(answer.body)["detail"] == f"there is no topic {name}"


def test_meta_01_who_was_declared_dead_lives_anew_and_gets_its_broker_back(tmp_path: Path) -> None:
    """Every role goes to the other with a higher epoch; memory of then is void, and the broker comes home."""
    warehouse = tmp_path / "warehouse"
    with (
        running(config_for(warehouse, brokers=("broker-a",))) as a,
        running(config_for(warehouse, brokers=("broker-b",))) as b,
    ):
        until(lambda: _see_each_other(a, b))
        _send_to(a, "orders", "orders@broker-b", "x")
        (handle,) = _handles(_pop(b, "orders"))
        life, hosting = b.service.hosting.id, b.service.hosting
        epochs: list[int] = []

        def dead(meta: Meta) -> Sequence[AnyEvent]:
            events = decide_takeover(meta.brokers, a.service.hosting.id, {life: meta.brokers.hosts[life].renewal})
            epochs.extend(
                event.epoch for event in events if not isinstance(event, HostLeft) and hasattr(event, "epoch")
            )
            return events

        on_loop(a, a.service.meta.submit_any(dead))
        until(lambda: hosting.id != life and hosting.hosts("broker-b"))
        assert hosting.epoch("broker-b") > epochs[-1]
        until(lambda: a.service.meta.now.brokers.owner("broker-b") == b.service.meta.now.brokers.owner("broker-b"))
        again = _pop(a, "orders", partition="orders@broker-b")
        assert [m["body"] for m in again.json["messages"]] == ["x"], "only memory knew that it was given away"
        assert b.call("POST", "/v1/groups/g/ack", {"handles": [handle]}).json["acked"] == 0
        assert b.call("POST", "/v1/groups/g/ack", {"handles": _handles(again)}).json["acked"] == 1
        assert not list((warehouse / "hosts").glob(f"{life}*"))


class NappingClock(SystemClock):
    """The wall clock of a process that, when it looks there next after `nap`, has slept until its lease was over."""

    def __init__(self, lease_clock: SetClock) -> None:
        self._lease_clock = lease_clock
        self._nap_ms = 0

    def nap(self, ms: int) -> None:
        self._nap_ms = ms

    def wall_us(self) -> int:
        nap_ms, self._nap_ms = self._nap_ms, 0
        self._lease_clock.advance_ms(nap_ms)
        return super().wall_us()


#: So long that nobody renews a lease before a test asks for it.
SELDOM: dict[str, Any] = {"lease_ms": 300_000, "lease_renew_ms": 100_000, "refresh_ms": 60_000}


def _renewed(api: Api) -> None:
    """Let it come to renew, once: its clock stands still from then on."""
    api.service.loop.call_soon_threadsafe(api.service.hosting.suspect)
    until(api.service.hosting.holds)


@pytest.mark.promise("HOST-6")
def test_meta_02_without_a_lease_nothing_is_answered(tmp_path: Path) -> None:
    """The own lease is over by the own clock: before a request, and while it is worked on."""
    config, lease_clock = config_for(tmp_path / "warehouse", brokers=("broker-a",), **SELDOM), SetClock()
    clock = NappingClock(lease_clock)
    with running(config, Ports(clock=clock, lease_clock=lease_clock)) as api:
        assert api.send("orders", "x", "y").status == 200
        (handle, _) = _handles(_pop(api, "orders", max_messages=2))
        calls = {
            "pop": ("POST", "/v1/groups/g/topics/orders/pop", {}),
            "ack": ("POST", "/v1/groups/g/ack", {"handles": [handle]}),
            "commit": ("PUT", "/v1/groups/g/topics/orders/offsets", {"offsets": {"orders@broker-a": 1}}),
        }
        lease_clock.advance_ms(config.service.lease_ms)
        for method, path, body in calls.values():
            refused = api.call(method, path, body)
            assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (503, "lease_lost", "1")
        assert api.send("orders", "z").status == 200, "anybody may append: the log decides"
        _renewed(api)
        clock.nap(config.service.lease_ms)
        slept = _pop(api, "orders")
        assert (slept.status, slept.json["code"]) == (503, "lease_lost")
        _renewed(api)


@pytest.mark.promise("HOST-6")
@pytest.mark.parametrize("memory_match", [True, False])
@pytest.mark.parametrize("call", ["ack", "nack"])
def test_meta_02_what_outlived_the_lease_is_not_confirmed(tmp_path: Path, call: str, memory_match: bool) -> None:
    """The own lease ends, by the own clock, between an acknowledgement and its answer."""
    config, lease_clock = config_for(tmp_path / "warehouse", brokers=("broker-a",), **SELDOM), SetClock()
    config = replace(config, queue=replace(config.queue, memory_match=memory_match))
    clock = NappingClock(lease_clock)
    with running(config, Ports(clock=clock, lease_clock=lease_clock)) as api:
        assert api.send("orders", "x").status == 200
        body = {"handles": _handles(_pop(api, "orders"))}
        clock.nap(config.service.lease_ms)
        slept = api.call("POST", f"/v1/groups/g/{call}", body)
        assert (slept.status, slept.json["code"], slept.headers["retry-after"]) == (503, "lease_lost", "1")
        _renewed(api)


@pytest.mark.promise("DELAY-5")
def test_retry_03_dead_letters_are_listed_and_sent_back_at_any_process_when_their_topic_is_gone(
    two: Two, topic: str
) -> None:
    partitions = [f"{topic}@{broker}" for broker in ("broker-a", "broker-b")]
    two.a.put_topic(topic, partitions=2)
    assert two.a.call("PUT", f"/v1/groups/{topic}", {"order": True}).status == 201
    letters = f"/v1/groups/{topic}/dead-letters"
    for api, partition in zip(two, partitions, strict=True):
        _send_to(api, topic, partition, partition)
        ask = {"wait_ms": 1_000, "partition": partition}
        popped = api.call("POST", f"/v1/groups/{topic}/topics/{topic}/pop", ask)
        # In place, without a job: they are popped in order.
        dead = api.call("POST", f"/v1/groups/{topic}/dead", {"handles": _handles(popped), "reason": "bad"})
        assert dead.status == 200 and dead.json["failed"] == []
    assert two.b.call("DELETE", f"/v1/topics/{topic}").status == 204
    # What else is there must not be what tells of the brokers.
    for other in two.b.call("GET", "/v1/topics").json["topics"]:
        assert two.b.call("DELETE", f"/v1/topics/{other}").status == 204
    until(lambda: not any(api.service.topics.state.topics for api in two))
    for api in two:
        listed = api.call("GET", letters).json
        assert listed["total"] == 2
        assert [one["origin"]["partition"] for one in listed["messages"]] == partitions, "in the same order everywhere"
        named = f"%DLQ%{topic}@broker-b"
        assert api.call("GET", f"{letters}?partition={quote(named, safe='')}").json["messages"][0]["reason"] == "bad"
    two.a.put_topic(topic, partitions=2)
    assert two.a.call("POST", f"{letters}/replay", {}).json["replayed"] == 2


def test_pop_18_a_commit_that_was_meant_before_a_reset_is_refused_at_any_process(two: Two, topic: str) -> None:
    ours, theirs = f"{topic}@broker-a", f"{topic}@broker-b"
    for partition in (ours, theirs):
        _send_to(two.a, topic, partition, *"abcdef")
    path = f"/v1/groups/{topic}/topics/{topic}/offsets"
    assert two.a.call("PUT", path, {"offsets": {ours: 1, theirs: 1}}).status == 200
    read = two.a.call("GET", path).json
    assert set(read["epochs"]) == {ours, theirs}
    meant = {"epochs": read["epochs"], "topic_id": read["topic_id"]}
    both = two.a.call("PUT", path, {"offsets": {ours: 2, theirs: 2}, **meant})
    assert both.status == 200 and both.json["epochs"] == read["epochs"]
    epoch = two.b.call("POST", path + "/reset", {"to": {theirs: 0}}).json["epoch"]
    for api in two:
        late = api.call("PUT", path, {"offsets": {theirs: 3}, **meant, "epochs": {theirs: read["epochs"][theirs]}})
        assert (late.status, late.json["code"], late.json["epoch"]) == (409, "epoch_over", epoch)
    read = two.a.call("GET", path).json
    assert read["offsets"] == {ours: 2, theirs: 0} and read["epochs"][theirs] == epoch
    assert two.a.call("PUT", path, {"offsets": {theirs: 4}, "epochs": {theirs: epoch}}).status == 200


@pytest.mark.promise("GROUP-6")
def test_pop_15_a_reset_at_another_process_wakes_the_pops_that_wait(two: Two) -> None:
    assert two.a.put_topic("again", partitions=2)
    _send_to(two.b, "again", "again@broker-b", "x")
    ask = {"partition": "again@broker-b", "wait_ms": 20_000}
    assert two.b.call("POST", "/v1/groups/g/ack", {"handles": _handles(_pop(two.b, "again", **ask))}).json["acked"] == 1
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(_pop, two.b, "again", **ask)
        until(lambda: two.b.service.lanes.waiting)
        assert two.a.call("POST", "/v1/groups/g/topics/again/offsets/reset", {"to": "first"}).status == 200
        found = waiting.result(60).json["messages"]
    assert [message["body"] for message in found] == ["x"]


def test_meta_01_a_role_that_cannot_be_begun_is_tried_again(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with running(config_for(warehouse, brokers=("broker-a",))) as a:
        failures = [Unavailable("the disk is away")]

        async def gained(role: str, epoch: int) -> None:
            if failures and role == "broker-b":
                raise failures.pop()

        a.service.hosting.hooks.gained.append(gained)
        with running(config_for(warehouse, brokers=("broker-b",))) as b:
            until(lambda: _see_each_other(a, b))
            _send_to(a, "orders", "orders@broker-b", "x")
        until(lambda: a.service.hosting.hosts("broker-b"))
        assert not failures
        assert [m["body"] for m in _pop(a, "orders").json["messages"]] == ["x"]
        assert a.service.hosting.hosts(META_ROLE)


def test_meta_01_calls_name_what_they_are(two: Two) -> None:
    """What was sent on is known as such, and only then."""

    async def elsewhere() -> object:
        call = Call("POST", b"/", [(b"mq-forwarded", b"x")], b"")
        return await two.a.service.peers.elsewhere("broker-b", call)

    with pytest.raises(DeltaMQError) as refused:
        on_loop(two.a, elsewhere())
    assert refused.value.code == "not_owner"
    assert on_loop(two.a, two.a.service.peers.elsewhere("broker-a", Call("POST", b"/", [], b""))) is None


def test_cons_07_clients_of_a_broadcast_group_have_their_progress_at_every_process(two: Two, topic: str) -> None:
    two.a.put_topic(topic, partitions=2)
    partitions = f"{topic}@broker-a", f"{topic}@broker-b"
    for partition in partitions:
        _send_to(two.a, topic, partition, *map(str, range(5)))
    two.a.call("PUT", f"/v1/groups/{topic}", {"consume_strategy": "broadcast"})
    wanted = {"one": dict(zip(partitions, (4, 1), strict=True)), "two": dict(zip(partitions, (2, 5), strict=True))}
    for client, offsets in wanted.items():
        path = f"/v1/groups/{quote(f'{topic}@{client}')}/topics/{topic}/offsets"
        for api in two:
            assert api.call("PUT", path, {"offsets": offsets}).status == 200
            assert api.call("GET", path).json["offsets"] == offsets
    for api in two:
        members = api.call("GET", f"/v1/groups/{topic}").json["members"]
        assert {one["client_id"]: one["lag"] for one in members} == {"one": 5, "two": 3}
    assert two.b.call("DELETE", f"/v1/groups/{topic}@one").status == 204
    until(lambda: len(two.a.call("GET", f"/v1/groups/{topic}").json["members"]) == 1)
