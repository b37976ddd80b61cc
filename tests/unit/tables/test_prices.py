"""The price lists of `conf/prices.toml` (SPEC LOOK-22)."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from deltamq.mq.errors import Refused
from deltamq.mq.prices import price_list_of
from deltamq.tables.prices import price_lists


def test_look_22_every_kind_of_store_has_a_list_with_its_day_and_source() -> None:
    lists = price_lists()
    addresses = ("s3://b", "s3://b--use1-az4--x-s3", "az://b", "abfss://b@a.dfs.core.windows.net", "gs://b")
    assert {price_list_of(address) for address in addresses} == set(lists)
    for prices in lists.values():
        assert date(2024, 1, 1) < prices.day and prices.source.startswith("https://")
        assert prices.put > prices.get > 0 == prices.delete and prices.gib_month > 0


def test_look_22_a_file_that_is_no_list_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    assert price_lists(tmp_path) == {}
    (tmp_path / "prices.toml").write_text("[mine]\nput = 'free'\n")
    with pytest.raises(Refused, match=r"prices\.toml: .*") as caught:
        price_lists(tmp_path)
    assert caught.value.code == "invalid_prices"
