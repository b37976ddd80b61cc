"""Warehouses with messages for tests that read them with Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.jobs.warehouses import Filled


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play what is marked `static_too` and reads `orders` against a static topic as well, by `make faults`."""
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    if "static_too" in marks and "orders" in metafunc.fixturenames:
        static = pytest.param("static", marks=pytest.mark.long)
        metafunc.parametrize("orders", ["plain", static], indirect=True)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    """A warehouse that is still empty."""
    made = Filled(tmp_path / "warehouse")
    yield made
    made.close()
