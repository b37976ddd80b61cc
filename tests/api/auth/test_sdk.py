"""The SDK with a key that has no more access than each of its parts needs (SPEC SEC-2, SEC-4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from deltamq import Admin, OrderlyConsumer, PopConsumer, Producer, PullConsumer, Result, Verdict
from deltamq.mq.auth.changes import decide_put_key, decide_put_principal, decide_put_quota, decide_put_rule
from deltamq.mq.auth.keys import Key
from deltamq.mq.auth.principals import quota_of, rule_of
from deltamq.mq.auth.state import AuthEvent, AuthState
from deltamq.mq.errors import Forbidden, Unauthenticated
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from tests.api.guarded import Guarded, guarded
from tests.api.running import until


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("sdk")) as admin:
        yield admin


def access(api: Guarded) -> dict[str, str | None]:
    return {"url": f"http://127.0.0.1:{api.port}", "token": api.token}


def send(api: Guarded, topic: str, *bodies: str) -> None:
    with Producer(**access(api)) as producer:
        for body in bodies:
            producer.send(topic, body)


def test_sec_02_a_producer_needs_publish(admin: Guarded) -> None:
    admin.put_topic("sdk.sent")
    send(admin.caller("sdk.sender", ("topic", "sdk.sent", "publish")), "sdk.sent", "a", "b")
    assert sum(admin.stored("sdk.sent").values()) == 2
    with pytest.raises(Forbidden):
        send(admin.caller("sdk.other", ("topic", "sdk.else", "publish")), "sdk.sent", "c")
    with pytest.raises(Unauthenticated):
        send(admin.by("mqk_0011223344556677_" + "a" * 43), "sdk.sent", "d")


def test_sec_02_consumers_need_subscribe(admin: Guarded) -> None:
    admin.put_topic("sdk.read", partitions=2)
    send(admin, "sdk.read", *(f"{number}" for number in range(20)))
    reader = admin.caller("sdk.reader", ("topic", "sdk.read", "subscribe"), ("group", "sdk.*", "subscribe"))
    wanted = {f"{number}" for number in range(20)}

    with PullConsumer(**access(reader), topic="sdk.read", start="first") as pulled:
        found: set[str] = set()
        until(lambda: found.update(message.text for message in pulled.poll()) or found >= wanted)

    popped, ordered, lock = set[str](), set[str](), threading.Lock()

    def take(message: object) -> Result:
        with lock:
            popped.add(message.text)  # type: ignore[attr-defined] # it is a popped message
        return Result.OK

    with PopConsumer(**access(reader), group="sdk.pop", topics=["sdk.read"], handler=take):
        until(lambda: popped >= wanted)

    with Admin(**access(admin)) as made:
        made.create_group("sdk.exclusive", consume_strategy="exclusive")

    def listen(message: object) -> Verdict:
        with lock:
            ordered.add(message.text)  # type: ignore[attr-defined] # it is a message
        return Verdict.SUCCESS

    with OrderlyConsumer(**access(reader), group="sdk.exclusive", topics=["sdk.read"], listener=listen):
        until(lambda: ordered >= wanted)


def test_sec_09_the_sdk_waits_as_it_is_told_and_loses_nothing(admin: Guarded) -> None:
    rate = 5
    caller = admin.caller("sdk.hasty", ("topic", "sdk.quota", "publish", "create", "subscribe"))
    assert admin.call("PUT", "/v1/auth/quotas/sdk.hasty", {"requests_per_s": rate}).status == 200
    bodies, began = [f"{number}" for number in range(3 * rate)], time.monotonic()
    with Producer(**access(caller)) as producer:
        for body in bodies:
            producer.send("sdk.quota", body)
    assert time.monotonic() - began > 1, "a second's worth is there at once, and the rest comes at its rate"
    assert sum(admin.stored("sdk.quota").values()) == len(bodies)


def many(names: Sequence[str]) -> list[AuthEvent]:
    """What makes these principals, each with a key, a rule and a quota."""
    state, made = AuthState(), list[AuthEvent]()
    like = Key(id="", principal="", digest="0" * 64, created_ms=5)
    for number, name in enumerate(names):
        begun = decide_put_principal(state, name, "", 5)
        alone = state.apply_all(begun)
        key = replace(like, id=f"{number:016x}", principal=name)
        rule = rule_of(principal=name, effect="allow", resource="topic", pattern="*", verbs=["publish"])
        made += [*begun, *decide_put_key(alone, key), *decide_put_rule(alone, rule)]
        made += decide_put_quota(alone, quota_of(name, requests_per_s=number + 1))
    return made


def test_sec_03_lists_of_the_sdk_have_all_rows_however_many_pages_these_are(tmp_path: Path) -> None:
    names = [f"p{number:04}" for number in range(2_001)]
    warehouse = Warehouse.open(str(tmp_path))
    MetaLog(warehouse).submit_any(lambda _: many(names))
    warehouse.close()
    with guarded(tmp_path) as admin, Admin(**access(admin)) as sdk:
        assert sdk.list_principals() == ["admin", *names]
        assert {one.principal for one in sdk.list_keys()} == {"admin", *names}
        assert len(sdk.list_keys()) == len(names) + 1
        assert {one.principal for one in sdk.list_acls()} == {"admin", *names}
        assert [one.requests_per_s for one in sdk.list_quotas()] == list(range(1, len(names) + 1))
        assert [one.principal for one in sdk.list_keys(names[7])] == [names[7]]
        assert [one.principal for one in sdk.list_acls(names[8])] == [names[8]]
        sdk.disable_principal(names[1_500])
        assert sdk.list_principals(disabled=True) == [names[1_500]]
        assert len(sdk.list_principals(disabled=False)) == len(names)
