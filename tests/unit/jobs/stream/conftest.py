"""A warehouse with a metadata log, for streams that are driven as Spark does it, but without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.queue_tables import QueueTables


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    """A warehouse that is still empty."""
    made = QueueTables(tmp_path / "warehouse")
    yield made
    made.close()
