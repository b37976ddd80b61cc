"""Prices of calls by a price list (SPEC LOOK-22)."""

from __future__ import annotations

from datetime import date

import pytest

from deltamq.mq.prices import SECONDS_A_MONTH, Calls, Prices, a_month, gib_put, price_list_of

_GIB = 1 << 30
PRICES = Prices(
    day=date(2026, 11, 29), source="s", put=5.0, list=4.0, get=0.4, head=0.3, gib_put=2.0, gib_got=1.0, gib_month=0.02
)


@pytest.mark.parametrize(
    ("operation", "done", "dollars"),
    [
        ("put", Calls(1_000_000, 0), 5.0),
        ("put_if_absent", Calls(2_000_000, _GIB), 12.0),
        ("list", Calls(1_000_000, 0), 4.0),
        ("get", Calls(1_000_000, 3 * _GIB), 3.4),
        ("head", Calls(1_000_000, 0), 0.3),
        ("delete", Calls(1_000_000, 0), 0.0),
    ],
)
def test_look_22_each_kind_of_call_has_its_price(operation: str, done: Calls, dollars: float) -> None:
    assert PRICES.of({operation: done}) == pytest.approx(dollars)


def test_look_22_a_gib_in_commits_of_a_mib_costs_a_cent() -> None:
    """Two puts of five dollars a million for each commit."""
    calls = {"put": Calls(1_024, _GIB), "put_if_absent": Calls(1_024, 0)}
    plain = Prices(day=PRICES.day, source="s", put=5.0, list=5.0, get=0.4, head=0.4, gib_month=0.023)
    assert plain.of(calls) / gib_put(calls) == pytest.approx(0.01024)


def test_look_22_a_month_at_a_rate() -> None:
    assert a_month(1.0, SECONDS_A_MONTH / 4) == 4.0
    assert a_month(1.0, 0.0) is None


@pytest.mark.parametrize(
    ("warehouse", "name"),
    [
        ("s3://warehouse/mq", "s3-standard"),
        ("s3://warehouse--use1-az4--x-s3/mq", "s3-express"),
        ("gs://warehouse/mq", "gcs-standard"),
        ("az://warehouse/mq", "azure-hot"),
        ("abfss://warehouse@account.dfs.core.windows.net/mq", "azure-hot"),
        ("/data/warehouse", None),
        ("file:///data/warehouse", None),
    ],
)
def test_look_22_a_warehouse_has_the_price_list_of_its_store(warehouse: str, name: str | None) -> None:
    assert price_list_of(warehouse) == name
