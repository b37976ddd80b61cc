"""An object store that answers late, or that has another put of the same key under way (SPEC RELY-15)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from deltamq.mq.errors import Unavailable, Unknown
from deltamq.tables.store.calls import blocking
from deltamq.tables.store.object import ObjectStore
from tests.store_proxy import Fault, StoreProxy

T = TypeVar("T")
_CREATE = ("CONDITIONAL_PUT",)
_CONFLICT = Fault(operations=_CREATE, status=409, code="ConditionalRequestConflict")


@pytest.fixture
def store(proxy: StoreProxy, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    proxy.reset()
    yield proxy.store(request.node.name)
    proxy.set_faults()


def _once(proxy: StoreProxy, fault: Fault, work: Callable[[], T]) -> T:
    """Do some work of which the first call meets the fault, and no later one."""
    proxy.set_faults(fault)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        while True:
            was_done = done.done()  # before its hits are counted: it may meet the fault and end between the two
            if sum(proxy.counts().hits):
                break
            assert not was_done, "no call has met the fault"
        proxy.set_faults()
        return done.result()


def test_rely_15_a_call_without_answer_is_asked_again(proxy: StoreProxy, store: ObjectStore) -> None:
    never = Fault(delay_s=600)
    assert _once(proxy, never, lambda: blocking(store.put_commit("log/1", b"one", ("file", b"data"), durable=True)))
    assert _once(proxy, never, lambda: store.read("log/1").to_pybytes()) == b"one"
    assert _once(proxy, never, lambda: store.exists("file"))
    assert _once(proxy, never, lambda: store.names("log")) == ["1"]


def test_rely_15_a_commit_whose_answer_is_lost_exists_for_its_repeat(proxy: StoreProxy, store: ObjectStore) -> None:
    lost = Fault(operations=_CREATE, acts=True, reset=True)
    with pytest.raises(Unknown) as unknown:
        _once(proxy, lost, lambda: blocking(store.put_commit("log/1", b"one", None, durable=True)))
    assert len(unknown.value.detail) < 500, "one line of the client's error"
    assert not blocking(store.put_commit("log/1", b"one", None, durable=True))
    assert store.read("log/1").to_pybytes() == b"one"


def test_rely_15_a_conflict_with_another_put_is_tried_again(proxy: StoreProxy, store: ObjectStore) -> None:
    assert _once(proxy, _CONFLICT, lambda: store.put_if_absent("log/1", b"one", durable=True))
    assert store.read("log/1").to_pybytes() == b"one"


def test_rely_15_a_conflict_that_does_not_end_has_stored_nothing(proxy: StoreProxy, store: ObjectStore) -> None:
    proxy.set_faults(_CONFLICT)
    with pytest.raises(Unavailable) as refused:
        store.put_if_absent("log/1", b"one", durable=True)
    assert refused.value.code == "contention" and not store.exists("log/1")


@pytest.mark.parametrize("status", [429, 503])
def test_rely_15_a_call_that_is_throttled_is_repeated_six_times_whatever_the_store_asks(
    proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The network's client does so by itself, and shows its callers no header: they have the error within seconds."""
    for name, value in proxy.environment().items():
        monkeypatch.setenv(name, value)
    store = ObjectStore(proxy.uri(f"throttled-{status}"))
    proxy.reset()
    proxy.set_faults(Fault(status=status, code="SlowDown", retry_after="60"))
    began_s = time.monotonic()
    try:
        with pytest.raises(Unavailable, match="SlowDown"):
            store.replace("file", b"")
        with pytest.raises(Unknown, match="SlowDown"):
            store.put_if_absent("log/1", b"one", durable=True)
    finally:
        proxy.set_faults()
    assert time.monotonic() - began_s < 30
    assert proxy.counts().calls == {"PUT": 7, "CONDITIONAL_PUT": 7}
    assert store.put_if_absent("log/1", b"one", durable=True)


def test_look_22_calls_that_fail_or_come_late_are_counted(proxy: StoreProxy, store: ObjectStore) -> None:
    assert store.put_if_absent("log/1", b"one", durable=True)
    assert not store.put_if_absent("log/1", b"two", durable=True) and not store.exists("log/2")
    assert sum(store.calls.so_far().failures.values()) == 0, "that a key exists, or does not, is an answer"
    assert _once(proxy, Fault(delay_s=600), lambda: store.read("log/1").to_pybytes()) == b"one"
    proxy.set_faults(Fault(operations=("PUT", "LIST"), status=403, code="AccessDenied"))
    for work in (lambda: store.put("file", b"", durable=True), lambda: store.names("log")):
        with pytest.raises(Unavailable):
            work()
    failed = {name: count for name, count in store.calls.so_far().failures.items() if count}
    assert failed == {"get": 1, "put": 1, "list": 1}
