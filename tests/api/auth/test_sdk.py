"""The SDK with a key that has no more access than each of its parts needs (SPEC SEC-2, SEC-4)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mq import Admin, OrderlyConsumer, PopConsumer, Producer, PullConsumer, Result, Verdict
from mq.errors import Forbidden, Unauthenticated
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
