"""Which host of a cluster is asked, and what happens when it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.http.hosts import META, Hosts
from deltamq.mq.client.messages.received import PoppedMessage
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.errors import Refused, Unavailable, Unknown
from tests.unit.client.pop.pop_consumers import QUICK, wait_done
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService


@pytest.fixture
def pair() -> Iterator[tuple[StubService, StubService]]:
    """Two hosts: broker-a and the meta role on the first one, broker-b on the second."""
    with StubService() as one, StubService() as other:
        hosted = {"broker-a": one, "broker-b": other, META: one}
        one.hosted, other.hosted = hosted, hosted
        other.topics = one.topics
        other.queue.issuers = one.queue.issuers
        yield one, other


@pytest.fixture
def hosts(pair: tuple[StubService, StubService]) -> Iterator[Hosts]:
    hosts = Hosts(pair[0].url)
    yield hosts
    run_now(hosts.close())


def urls(hosts: Hosts, *roles: str) -> list[str]:
    return [hosts.endpoint(role).url for role in roles]


def test_before_the_view_is_known_the_given_url_answers_for_everything(
    hosts: Hosts, pair: tuple[StubService, StubService]
) -> None:
    assert urls(hosts, "broker-a", "broker-b", META) == [pair[0].url] * 3


def test_meta_01_one_call_tells_where_each_broker_is(hosts: Hosts, pair: tuple[StubService, StubService]) -> None:
    assert run_now(hosts.look())
    assert urls(hosts, "broker-a", "broker-b", META, "broker-c") == [pair[0].url, pair[1].url, pair[0].url, pair[0].url]
    assert [one.url for one in hosts.of(["broker-b", "broker-a"])] == [pair[0].url, pair[1].url]
    assert [one.url for one in hosts.of([])] == [pair[0].url]


def test_a_host_is_reached_by_the_url_that_was_given_not_by_the_one_that_it_tells(
    pair: tuple[StubService, StubService],
) -> None:
    one, other = pair
    hosts = Hosts(one.url.replace("127.0.0.1", "localhost"))
    assert run_now(hosts.look())
    assert urls(hosts, "broker-a", "broker-b") == [one.url.replace("127.0.0.1", "localhost"), other.url]
    run_now(hosts.close())


def test_a_balancers_url_is_not_taken_for_one_of_its_hosts(hosts: Hosts, pair: tuple[StubService, StubService]) -> None:
    one, other = pair
    run_now(hosts.look())
    mine, one.host_id = one.host_id, other.host_id
    one.hosted = {}
    document = other.cluster_json()
    document["brokers"][0] |= {"host": mine, "address": "http://127.0.0.1:1"}
    document["meta"] |= {"host": mine, "address": "http://127.0.0.1:1"}
    one.cluster_json = lambda: {**document, "host": other.host_id}
    run_now(hosts.look())
    assert urls(hosts, "broker-a", "broker-b") == ["http://127.0.0.1:1", other.url]


def test_a_host_that_cannot_be_reached_is_passed_over_and_asked_again_later(
    hosts: Hosts, pair: tuple[StubService, StubService]
) -> None:
    run_now(hosts.look())
    first = hosts.endpoint("broker-a")
    hosts.failed(first, Unavailable("no", code="connect_failed"))
    assert urls(hosts, "broker-a", "broker-b") == [pair[1].url, pair[1].url]
    hosts.failed(hosts.endpoint("broker-a"), Unknown("no", code="no_answer"))
    assert hosts.endpoint("broker-a") is first, "all are passed over: the one whose time ends first"
    hosts.answered(first)
    assert hosts.endpoint("broker-b") is first


def test_a_single_host_is_never_passed_over(stub: StubService) -> None:
    hosts = Hosts(stub.url)
    hosts.failed(hosts.endpoint(), Unavailable("no", code="connect_failed"))
    assert hosts.endpoint("broker-a").url == stub.url
    run_now(hosts.close())


def test_a_role_that_has_moved_is_asked_for_at_any_host_until_the_view_is_new(
    hosts: Hosts, pair: tuple[StubService, StubService]
) -> None:
    run_now(hosts.look())
    hosts.failed(hosts.endpoint("broker-b"), Unavailable("moved", code="not_owner"))
    assert urls(hosts, "broker-b", "broker-a") == [pair[0].url, pair[0].url]
    pair[0].hosted = {**pair[0].hosted, "broker-a": pair[1], "broker-b": pair[0]}
    run_now(hosts.look())
    assert urls(hosts, "broker-b", "broker-a") == [pair[0].url, pair[1].url]


def test_a_host_that_has_gone_is_forgotten_with_its_connections(
    hosts: Hosts, pair: tuple[StubService, StubService]
) -> None:
    """In a cluster whose processes get new addresses, a client kept the sockets of all that there ever were."""
    one, other = pair
    run_now(hosts.look())
    run_now(hosts.call("GET", "/v1/topics", role="broker-b"))
    hosts.failed(hosts.endpoint("broker-b"), Unknown("no", code="no_answer"))
    one.hosted = {"broker-a": one, META: one}
    assert run_now(hosts.look())
    one.queue.wait_for(lambda: not other.connections)
    assert urls(hosts, "broker-a", "broker-b") == [one.url, one.url]
    assert list(hosts._learned) == [] and not hosts._avoided and not hosts._failures
    one.hosted = {**one.hosted, "broker-b": other}
    assert run_now(hosts.look())
    assert run_now(hosts.call("GET", "/v1/topics", role="broker-b")).status == 200
    assert len(other.connections) == 1, "it is back, and asked as before"


def test_a_request_at_a_host_that_is_forgotten_meanwhile_ends_as_usual(
    hosts: Hosts, pair: tuple[StubService, StubService]
) -> None:
    one, other = pair
    run_now(hosts.look())
    other.queue.faults["ack"].append(QueueFault.GATE_AFTER)
    with ThreadPoolExecutor(1) as thread:
        body = b'{"handles":[]}'
        call = hosts.call("POST", "/v1/groups/billing/ack", role="broker-b", body=body)
        answer = thread.submit(run_now, call)
        other.queue.wait_for(lambda: bool(other.queue.calls_of("ack")))
        one.hosted = {"broker-a": one, META: one}
        assert run_now(hosts.look())
        assert list(hosts._learned) == [] and not answer.done()
        other.queue.gate.set()
        assert answer.result(10).status == 200
    one.queue.wait_for(lambda: not other.connections)


def test_a_pull_consumer_keeps_no_connection_to_a_host_that_has_gone(pair: tuple[StubService, StubService]) -> None:
    one, other = pair
    one.create("orders", 2)
    with PullConsumer(one.url, "orders", patience=QUICK, partitions_age_s_max=0.01) as consumer:
        run_now(consumer._hosts.look())
        while not any("/partitions/" in path for path in other.gets):
            consumer.poll(wait_ms=10)
        one.hosted = {"broker-a": one, "broker-b": one, META: one}
        assert run_now(consumer._hosts.look())
        while other.connections:  # the test's own limit ends it
            consumer.poll(wait_ms=10)


def test_a_given_url_is_kept_although_no_host_answers_there_any_more(pair: tuple[StubService, StubService]) -> None:
    one, other = pair
    hosts = Hosts([one.url, other.url])
    one.hosted = {"broker-a": one, META: one}
    assert run_now(hosts.look()) and hosts.are_several
    hosts.failed(hosts.endpoint("broker-a"), Unknown("no", code="no_answer"))
    assert hosts.endpoint("broker-a").url == other.url
    run_now(hosts.close())


@pytest.mark.parametrize("url", ["", ",", []])
def test_no_url_at_all_is_refused(url: str | list[str]) -> None:
    with pytest.raises(Refused) as refused:
        Hosts(url)
    assert refused.value.field == "url"


def test_of_several_given_urls_one_that_answers_is_enough(stub: StubService) -> None:
    stub.create("orders", 1)
    with Admin(f"http://127.0.0.1:1,{stub.url}", patience=QUICK) as admin:
        assert admin.list_topics() == ["orders"]


def test_meta_01_a_producer_sends_to_the_host_of_each_broker(pair: tuple[StubService, StubService]) -> None:
    one, other = pair
    one.create("orders", 2)
    with Producer(one.url, first_wait_ms=1, wait_ms_max=5) as producer:
        producer.send("orders", b"0", partition="orders@broker-a")
        one.wait_for(lambda: "/v1/cluster" in one.gets)
        # What is known is asked for in the background.
        while not other.posts:
            producer.send("orders", b"1", partition="orders@broker-b")
    assert {post.partition for post in other.posts} == {"orders@broker-b"}


def test_a_producer_goes_on_at_another_host_when_one_is_away(pair: tuple[StubService, StubService]) -> None:
    one, other = pair
    one.create("orders", 2)
    with Producer([one.url, other.url], first_wait_ms=1, wait_ms_max=5, timeout_s=10) as producer:
        producer.send("orders", b"0", partition="orders@broker-a")
        one.away = True
        one.close_connections()
        assert producer.send("orders", b"1", partition="orders@broker-a").offset == 1
        assert [post.body.count(b'"1"') for post in other.posts][-1:] == [1]


def test_a_pull_consumer_goes_on_at_another_host_when_one_is_away(pair: tuple[StubService, StubService]) -> None:
    one, other = pair
    topic = one.create("orders", 1)
    topic.log("orders@broker-a").append({"offset": 0, "body": b"0"})
    with PullConsumer([one.url, other.url], "orders", patience=QUICK) as consumer:
        assert [message.offset for message in consumer.poll()] == [0]
        one.away = True
        one.close_connections()
        topic.log("orders@broker-a").append({"offset": 1, "body": b"1"})
        assert [message.offset for message in consumer.poll(wait_ms=5_000)] == [1]


def test_pop_01_a_consumer_pops_at_every_host_of_its_topic(pair: tuple[StubService, StubService]) -> None:
    one, other = pair
    one.create("orders", 2)
    one.queue.fill("orders", 20)
    other.queue.fill("orders", 20, start=20)
    handled: list[int] = []
    settings = {"patience": QUICK, "wait_ms": 15_000, "order": False}

    def handle(message: PoppedMessage) -> None:
        with one.changed:
            handled.append(int(message.body))
            one.changed.notify_all()

    with PopConsumer(one.url, "billing", "orders", handle, **settings) as consumer:
        one.wait_for(lambda: len(handled) == 40)
        wait_done(one)
        wait_done(other)
        one.queue.fill("orders", 1, start=40)
        one.wait_for(lambda: len(handled) == 41)
        # One of them serves both brokers now.
        one.hosted = {**one.hosted, "broker-a": other, "/meta": other}
        other.hosted = one.hosted
        one.away = True
        one.close_connections()
        other.queue.fill("orders", 1, start=41)
        one.wait_for(lambda: len(handled) == 42)
        assert consumer.close().unfinished == 0
    assert sorted(handled) == list(range(42))


def test_pop_01_partitions_that_an_expansion_puts_on_a_known_host_are_popped(
    pair: tuple[StubService, StubService],
) -> None:
    """Neither a host nor an owner changes then, so only the topic itself tells that it is at another broker, too."""
    one, other = pair
    one.create("orders", 1)
    one.queue.fill("orders", 1)
    handled: list[int] = []

    def handle(message: PoppedMessage) -> None:
        with one.changed:
            handled.append(int(message.body))
            one.changed.notify_all()

    consumer = PopConsumer(one.url, "billing", "orders", handle, patience=QUICK, order=False)
    consumer._pollers._brokers_age_s = 0.01
    with consumer:
        one.queue.wait_for(lambda: handled == [0] and "/v1/topics/orders" in [*one.gets, *other.gets])
        epoch = consumer._client.hosts.epoch
        one.expand("orders", 2)
        other.queue.fill("orders", 1, start=1)
        one.wait_for(lambda: len(handled) == 2)
        assert consumer._client.hosts.epoch == epoch, "nothing else has changed"
        assert [len(stub.queue.calls_of("pop")) > 0 for stub in pair] == [True, True]


def test_pop_01_pollers_stay_where_they_are_while_a_host_is_avoided_or_the_topic_cannot_be_looked_up(
    pair: tuple[StubService, StubService],
) -> None:
    one, other = pair
    one.create("orders", 2)
    one.queue.fill("orders", 0)
    other.queue.fill("orders", 0)
    consumer = PopConsumer(one.url, "billing", "orders", lambda _: None, patience=QUICK, order=False)
    consumer._pollers._brokers_age_s = 0.01
    hosts = consumer._client.hosts

    def looks() -> int:
        return sum(path == "/v1/topics/orders" for stub in pair for path in stub.gets)

    def look_again() -> None:
        before = looks()
        one.queue.wait_for(lambda: looks() >= before + 2)

    with consumer:
        one.queue.wait_for(lambda: one.queue.pops_open == other.queue.pops_open == 1)
        cancelled = [stub.queue.pops_cancelled for stub in pair]
        targets = consumer._pollers._targets
        hosts.failed(hosts.endpoint("broker-b"), Unknown("no", code="no_answer"))
        look_again()
        del one.topics["orders"]
        look_again()
        assert consumer._pollers._targets is targets and len(targets) == 2
        assert [stub.queue.pops_cancelled for stub in pair] == cancelled
