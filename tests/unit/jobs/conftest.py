"""Warehouses for tests that read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.jobs.warehouses import Filled


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    """A warehouse that is still empty."""
    made = Filled(tmp_path / "warehouse")
    yield made
    made.close()
