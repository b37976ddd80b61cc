"""An object store that is gone, or answers nothing (fault F20): what callers and operators see, and what stays bounded.

What is stored under such faults is judged by `tests/history/test_store_faults.py`.
"""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.service_process import ServiceProcess
from tests.history.clients.door import Answer, Door
from tests.store_proxy import WRITES, Fault, StoreProxy

_PATH: Final = "/v1/topics/orders/messages"
#: What a producer is told while the store is gone; both ask it to repeat.
_GONE_CODES: Final = {"storage_error", "outcome_unknown", "storage_read_only"}
_WITHIN_S: Final = 90
_KIB: Final = 1024


@pytest.fixture
def service(proxied_store: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceProcess]:
    """A service with a topic of one partition, and little place for requests that wait."""
    more = {
        "DELTAMQ_SERVICE_QUEUE_BYTES_MAX": str(1024 * _KIB),
        "DELTAMQ_SERVICE_REQUEST_BYTES_MAX": str(512 * _KIB),
    }
    for name, value in (proxied_store.environment() | more).items():
        monkeypatch.setenv(name, value)
    service = ServiceProcess(tmp_path / "warehouse", "--warehouse", proxied_store.uri(tmp_path.name))
    try:
        with closing(Door([service.url])) as door:
            assert door.call("PUT", "/v1/topics/orders", {"partitions": 1}).ok
            assert _sent(door, "before").ok
        yield service
    finally:
        proxied_store.set_faults()
        service.close()


def _sent(door: Door, body: str, seq: int | None = None) -> Answer:
    producer = {} if seq is None else {"producer": {"id": "p", "seq": seq}}
    return door.call("POST", _PATH, {"messages": [{"body": body}], **producer})


def _until(door: Door, path: str, is_so: Any) -> Answer:
    """Ask until the answer is as wanted."""
    for _ in range(_WITHIN_S * 10):
        answer = door.call("GET", path)
        if is_so(answer):
            return answer
        threading.Event().wait(0.1)
    raise AssertionError(f"{path} still says {answer}")


def _metric(service: ServiceProcess, name: str) -> float:
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=_WITHIN_S) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _log_of(service: ServiceProcess) -> str:
    return (service.warehouse.parent / "service.log").read_text()


def _bodies(door: Door) -> list[str]:
    return [
        m["body"] for m in door.call("GET", "/v1/topics/orders/partitions/orders@broker-a/messages").body["messages"]
    ]


#: What the store does, with the code of `/readyz` and what its text names.
_GONE: Final = {
    "unreachable": (Fault(reset=True), "metadata_unread", "cannot read sys/meta"),
    "silent": (Fault(delay_s=600), "metadata_unread", "the store has not answered"),
    "read-only": (Fault(operations=WRITES, status=403, code="AccessDenied"), "lease_lost", "cannot write sys/meta"),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "gone", ["unreachable", *(pytest.param(name, marks=pytest.mark.long) for name in ("silent", "read-only"))]
)
def test_rely_10_a_store_that_is_gone_is_named_and_the_process_goes_on_when_it_is_back(
    service: ServiceProcess, proxied_store: StoreProxy, gone: str
) -> None:
    fault, code, named = _GONE[gone]
    with closing(Door([service.url], timeout_s=_WITHIN_S)) as door, ThreadPoolExecutor(1) as thread:
        proxied_store.set_faults(fault)
        sending = thread.submit(_sent, door, "during", 0)
        with closing(Door([service.url])) as looking:
            unready = _until(looking, "/readyz", lambda answer: answer.status == 503)
            assert (unready.body["code"], named in unready.body["detail"]) == (code, True), unready
            assert _metric(service, "deltamq_metadata_unread_seconds") > 5 or code == "lease_lost"
            if gone != "silent":
                refused = sending.result()
                assert refused.status == 503 and refused.body["code"] in _GONE_CODES
                failing = "put" if gone == "read-only" else "get"
                assert _metric(service, f'deltamq_store_failures_total{{operation="{failing}"}}') > 0
            proxied_store.set_faults()
            _until(looking, "/readyz", lambda answer: answer.ok)
        assert sending.result().status in (200, 503)
        assert _sent(door, "during", seq=0).ok
        assert _sent(door, "after", seq=1).ok
        assert _bodies(door) == ["before", "during", "after"]
    assert _log_of(service).count("lease_tick_failed") <= 2, "it is said once, not at each of hundreds of looks"


@pytest.mark.timeout(240)
def test_f20_what_waits_for_a_store_that_does_not_answer_is_bounded(
    service: ServiceProcess, proxied_store: StoreProxy
) -> None:
    proxied_store.set_faults(Fault(operations=WRITES, delay_s=1.5))

    def send(number: int) -> tuple[int, str]:
        body = f"{number:02d}" * (128 * _KIB)
        with closing(Door([service.url], timeout_s=_WITHIN_S)) as door:
            answer = _sent(door, body)
        return answer.status, body

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(send, range(8)))
    proxied_store.set_faults()
    statuses = sorted(status for status, _ in answers)
    assert set(statuses) == {200, 429}, statuses
    with closing(Door([service.url])) as door:
        stored = _bodies(door)
    assert sorted(stored) == sorted(["before", *(body for status, body in answers if status == 200)])
