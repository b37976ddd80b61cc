"""The doctor's look at an object store: put-if-absent, how long its calls take, what a commit costs (SPEC LOOK-23)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from deltamq.jobs.cli.options import warehouse_uri
from deltamq.mq.client.cli.doctor import Check, Subject
from deltamq.mq.errors import DeltaMQError, Unavailable
from deltamq.mq.prices import Calls, price_list_of
from deltamq.tables.log.warehouse import open_store
from deltamq.tables.ops.store_speed import Speed, measure
from deltamq.tables.prices import price_lists
from deltamq.tables.store.store import StoreUnsafe, probe

T = TypeVar("T")

_CALLS: Final = 20
_MEASURED_S: Final = 10.0
#: A store that does not answer is asked again for minutes: the doctor does not wait for that.
_PATIENCE_S: Final = 40.0
#: A commit that takes longer makes producers wait too long: the service is far from its store, or overloaded.
_SLOW_MS: Final = 1_000
_NAMES: Final = {"put": "PUT", "put_if_absent": "conditional PUT", "get": "GET", "list": "LIST"}


def store_checks(subject: Subject) -> Iterator[Check]:
    """Check that puts are conditional, and measure the store; nothing of a folder."""
    uri = warehouse_uri(subject.profile, subject.warehouse)
    if "://" not in uri or uri.startswith("file://"):
        return
    try:
        speeds = within(_PATIENCE_S, lambda: _measured(uri))
    except DeltaMQError as error:
        is_unsafe = isinstance(error, StoreUnsafe)
        yield Check.failed(
            "store",
            error.detail if is_unsafe else f"{uri}: {error.detail}",
            "take a store with conditional put (tables/store/README.md lists some)"
            if is_unsafe
            else "compare bucket, region, endpoint and credentials in the environment with what the store has",
        )
        return
    yield Check.ok("store", f"{uri} puts if absent: of two writers exactly one wins")
    times = ", ".join(f"{name} {_shown(speeds[kind])}" for kind, name in _NAMES.items())
    count = speeds["put"].calls
    yield Check.ok("store", f"p50 and p99 of {count} calls each: {times}")
    yield _commit(uri, speeds["commit"])


def _commit(uri: str, commit: Speed) -> Check:
    """Say what a commit takes and costs: what an acknowledgement waits for."""
    detail = f"an acknowledgement waits for a commit, a PUT and then a conditional PUT: {_shown(commit)}"
    name = price_list_of(uri)
    if name is not None and (prices := price_lists().get(name)) is not None:
        million = prices.of({"put": Calls(1_000_000), "put_if_absent": Calls(1_000_000)})
        detail += f"; a million commits cost ${million:,.2f} (prices of {name}, {prices.day})"
    if commit.p50_ms <= _SLOW_MS:
        return Check.ok("store", detail)
    return Check.warning("store", detail, "run the service in the region of its bucket")


def _shown(speed: Speed) -> str:
    return f"{speed.p50_ms:,.0f} and {speed.p99_ms:,.0f} ms"


def _measured(uri: str) -> Mapping[str, Speed]:
    store = open_store(uri, create=False)
    probe(store)
    return measure(store, calls=_CALLS, seconds=_MEASURED_S)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns; raise `Unavailable` if it takes longer: then it goes on until the process ends."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise Unavailable(f"it did not answer in {seconds:.0f} s", code="storage_error")
    return results[0]
