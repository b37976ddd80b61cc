"""A queue with a topic, which is static where a test asks for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.as_static import is_static
from tests.api.queue_calls import Queue, queue_in


@pytest.fixture
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse", static=is_static(request)) as found:
        found.topic()
        yield found
