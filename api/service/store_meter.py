"""What the process asked of its object store, and what that costs (SPEC LOOK-22)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from deltamq.mq.errors import Refused
from deltamq.mq.prices import Calls, Prices, a_month, gib_put, price_list_of
from deltamq.mq.wire.cluster import StoreOperation, StoreUse
from deltamq.tables.prices import price_lists
from deltamq.tables.store.call_counts import CallCounts

log = logging.getLogger("deltamq.api")


class StoreMeter:
    """Shows the calls of a store; of a disk there are none."""

    def __init__(self, calls: CallCounts | None, warehouse: str) -> None:
        self._calls = calls
        self._name = None if calls is None else price_list_of(warehouse)
        self._prices = None if self._name is None else _prices(self._name)

    def families(self) -> Iterator[Metric]:
        """Yield the calls, those of them that failed, and the bytes that they put or got, by operation."""
        if self._calls is None:
            return
        requests = CounterMetricFamily("deltamq_store_requests", "Calls of the object store.", labels=["operation"])
        nbytes = CounterMetricFamily("deltamq_store_bytes", "Bytes put or got by them.", labels=["operation"])
        failures = CounterMetricFamily(
            "deltamq_store_failures", "Those that failed, or were late and given up.", labels=["operation"]
        )
        so_far = self._calls.so_far()
        for operation, done in so_far.calls.items():
            requests.add_metric([operation], done.requests)
            failures.add_metric([operation], so_far.failures[operation])
            nbytes.add_metric([operation], done.bytes)
        yield from (requests, failures, nbytes)

    def use(self) -> StoreUse | None:
        """Return the calls and their price."""
        if self._calls is None:
            return None
        now, month, gib = self._calls.so_far(), None, None
        if self._prices is not None:
            month = a_month(self._prices.of(now.recent), now.recent_seconds)
            written = gib_put(now.calls)
            gib = self._prices.of(now.calls) / written if written else None
        return StoreUse(
            seconds=round(now.seconds, 3),
            operations=_operations(now.calls),
            recent_seconds=round(now.recent_seconds, 3),
            recent=_operations(now.recent),
            prices=None if self._prices is None else self._name,
            dollars_a_month=month,
            dollars_a_gib=gib,
        )


def _prices(name: str) -> Prices | None:
    try:
        return price_lists().get(name)
    except Refused as error:
        log.warning("event=prices_not_read detail=%r", error.detail)
        return None


def _operations(calls: Mapping[str, Calls]) -> tuple[StoreOperation, ...]:
    return tuple(
        StoreOperation(operation=name, requests=done.requests, bytes=done.bytes) for name, done in calls.items()
    )
