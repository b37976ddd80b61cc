"""One service for a module's tests; a test that needs other settings starts its own with `running`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.api.running import Api, config_for, running

_numbers = itertools.count()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service that creates topics on their first message."""
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        yield found


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"orders.{next(_numbers)}"
