from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.http.credentials import Credentials
from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.http.tokens import check_token
from deltamq.mq.client.messages.received import Result
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.errors import DeltaMQError, Refused, Unauthenticated, Unavailable
from deltamq.mq.order.orderly import Verdict
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import BROKERS


def rotating(stub: StubService) -> Callable[[], str]:
    """Return a function whose tokens are valid one after another: each new one ends the one before it."""
    numbers = itertools.count(1)

    def token() -> str:
        made = f"token-{next(numbers)}"
        stub.valid_tokens = {made}
        return made

    return token


def test_sec_20_the_token_comes_from_the_environment_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAMQ_CLIENT_TOKEN", "from-env\n")
    assert run_now(Credentials().token()) == "from-env"
    assert run_now(Credentials("given").token()) == "given"
    assert run_now(Credentials(lambda: "made").token()) == "made"
    assert run_now(Credentials("").token()) is None
    monkeypatch.delenv("DELTAMQ_CLIENT_TOKEN")
    assert run_now(Credentials().token()) is None


@given(st.text() | st.none() | st.integers())
def test_sec_20_a_token_cannot_add_a_header_and_is_not_shown_when_refused(text: Any) -> None:
    try:
        token = check_token(text)
    except Refused as error:
        assert error.code == "invalid_token" and error.field == "token"
        assert not isinstance(text, str) or len(text) < 12 or text not in str(error)
    else:
        assert token.isascii() and token.isprintable() and " " not in token


def test_sec_20_a_token_that_is_too_long_is_refused() -> None:
    check_token("a" * 16_384)
    with pytest.raises(Refused):
        check_token("a" * 16_385)


def test_sec_20_a_function_is_asked_once_and_again_when_its_token_is_refused() -> None:
    asked: list[int] = []

    def token() -> str:
        asked.append(len(asked))
        return f"t{len(asked)}"

    credentials = Credentials(token)
    assert [run_now(credentials.token()) for _ in range(5)] == ["t1"] * 5
    assert run_now(credentials.renew("t1")) and run_now(credentials.token()) == "t2"
    # another thread's request with the old token comes later: the new one is there already
    assert run_now(credentials.renew("t1")) and run_now(credentials.token()) == "t2"
    assert len(asked) == 2
    assert not run_now(Credentials("fixed").renew("fixed"))
    same = Credentials(lambda: "same")
    assert not run_now(same.renew(run_now(same.token())))


def test_sec_20_a_function_that_fails_is_unavailable_and_its_message_is_kept_back() -> None:
    def broken() -> str:
        raise ValueError("the secret is s3cret")

    with pytest.raises(Unavailable) as caught:
        run_now(Credentials(broken).token())
    assert caught.value.code == "token_unavailable"
    assert "s3cret" not in str(caught.value) and "ValueError" in str(caught.value)


def test_sec_20_many_threads_renew_a_token_once() -> None:
    asked: list[int] = []
    credentials = Credentials(lambda: f"t{asked.append(1) or len(asked)}")
    assert run_now(credentials.token()) == "t1"
    threads = [threading.Thread(target=lambda: run_now(credentials.renew("t1"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 2


def test_sec_21_every_client_sends_its_token_with_every_call(stub: StubService) -> None:
    stub.create("orders")
    stub.valid_tokens = {"good"}
    with Producer(stub.url, token="good") as producer:
        producer.send("orders", b"1", key="a")
    with PullConsumer(stub.url, "orders", token="good") as pull:
        assert [message.body for message in pull.poll(wait_ms=20_000)] == [b"1"]
    heard = threading.Event()
    with PopConsumer(stub.url, "billing", "orders", lambda message: heard.set() or Result.OK, token="good"):
        assert heard.wait(20)
    heard.clear()
    with OrderlyConsumer(stub.url, "ledger", "orders", lambda _: heard.set() or Verdict.SUCCESS, token="good"):
        assert heard.wait(20)
    with Admin(stub.url, token="good") as admin:
        admin.list_topics()
    assert stub.refused_calls == []
    assert set(stub.tokens) == {"Bearer good"}


def test_sec_21_without_a_valid_token_each_client_says_so(stub: StubService) -> None:
    stub.create("orders")
    stub.valid_tokens = {"good"}
    with Admin(stub.url, token="bad") as admin, pytest.raises(Unauthenticated):
        admin.list_topics()
    with Producer(stub.url, token="bad") as producer, pytest.raises(Unauthenticated) as caught:
        producer.send("orders", b"1")
    assert "bad" not in str(caught.value)
    with pytest.raises(Unauthenticated):
        PullConsumer(stub.url, "orders", token="bad")


def test_sec_21_a_refused_token_is_renewed_once_in_every_client(stub: StubService) -> None:
    stub.create("orders")
    with Producer(stub.url, token=rotating(stub)) as producer:
        producer.send("orders", b"1", key="a")
        stub.valid_tokens = set()
        producer.send("orders", b"2", key="a")
    with PullConsumer(stub.url, "orders", token=rotating(stub)) as pull:
        assert len(pull.poll(1, wait_ms=20_000)) == 1
        stub.valid_tokens = set()
        assert len(pull.poll(10, wait_ms=20_000)) == 1
        assert pull.poll(10, wait_ms=50) == [], "whoever was refused has the new token, before that is refused, too"
        stub.valid_tokens = set()
        assert pull.poll(10, wait_ms=50) == []
    assert {call.rpartition("/")[2] for call in stub.refused_calls} >= {"messages"}
    stub.refused_calls.clear()
    heard: list[bytes] = []
    done = threading.Event()

    def handle(message: Any) -> Result:
        heard.append(message.body)
        if len(heard) == 1:
            stub.valid_tokens = set()
        if len(heard) == 2:
            done.set()
        return Result.OK

    with PopConsumer(stub.url, "billing", "orders", handle, concurrency=1, token=rotating(stub)):
        assert done.wait(20)
    # whichever call came first: a pop, an acknowledgement or the refresh of the cluster's description
    assert {call.rpartition("/")[2] for call in stub.refused_calls} & {"pop", "ack", "cluster"}


def test_sec_21_a_token_that_is_refused_again_is_an_error_and_not_a_loop(stub: StubService) -> None:
    stub.valid_tokens = set()
    numbers = itertools.count()
    with Admin(stub.url, token=lambda: f"never-{next(numbers)}") as admin, pytest.raises(Unauthenticated):
        admin.list_topics()
    assert stub.refused_calls == ["GET /v1/topics"] * 2


def test_sec_21_a_send_whose_token_cannot_be_had_was_not_stored(stub: StubService) -> None:
    stub.create("orders")
    broken = threading.Event()

    def token() -> str:
        if broken.is_set():
            raise OSError("no route to the provider")
        return "good"

    stub.valid_tokens = {"good"}
    with Producer(stub.url, token=token, timeout_s=2, first_wait_ms=1) as producer:
        producer.send("orders", b"1")
        broken.set()
        stub.valid_tokens = set()
        with pytest.raises(DeltaMQError) as caught:
            producer.send("orders", b"2")
    assert caught.value.code == "token_unavailable" and isinstance(caught.value, Unavailable)


def test_sec_22_a_token_is_sent_to_the_clusters_processes_and_not_in_the_clear_where_urls_are_encrypted() -> None:
    hosts = Hosts("https://mq.example.org", token="good")
    with pytest.raises(Refused):
        hosts._not_below(Endpoint("http://10.0.0.7:8080"))
    assert hosts._not_below(Endpoint("https://10.0.0.7:8080")).url == "https://10.0.0.7:8080"
    run_now(hosts.close())


def test_sec_22_the_token_goes_to_processes_that_the_cluster_names(stub: StubService) -> None:
    with StubService() as other:
        stub.beside(other)
        stub.create("orders")
        stub.valid_tokens = other.valid_tokens = {"good"}
        hosts = Hosts(stub.url, token="good")
        assert run_now(hosts.look())
        assert run_now(hosts.call("GET", "/v1/topics", role=BROKERS[1])).status == 200
        assert other.tokens == ["Bearer good"]
        run_now(hosts.close())


def test_sec_22_a_redirect_is_not_followed(stub: StubService) -> None:
    endpoint = Endpoint(stub.url, credentials=Credentials("good"))
    assert "good" not in repr(vars(endpoint)) and "good" not in repr(endpoint)
    run_now(endpoint.close())


@pytest.mark.parametrize("arguments", [("topic", "list"), ("doctor",), ("cluster",)])
def test_sec_23_the_command_line_never_shows_the_token(
    stub: StubService, run: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    stub.valid_tokens = {"s3cret-good"}
    for token in ("s3cret-good", "s3cret-bad"):
        monkeypatch.setenv("DELTAMQ_CLIENT_TOKEN", token)
        for flags in ((), ("--json",)):
            done = run(*arguments, *flags)
            assert "s3cret" not in done.out + done.err
    assert "Bearer s3cret-good" in stub.tokens


def test_sec_23_a_refused_token_is_told_with_its_remedy(stub: StubService, run: Any) -> None:
    stub.valid_tokens = {"good"}
    done = run("topic", "list", "--token", "bad")
    assert done.status == 1
    assert "unauthenticated" in done.err and "DELTAMQ_CLIENT_TOKEN" in done.err
