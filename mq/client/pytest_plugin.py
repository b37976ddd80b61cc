"""The plugin that pytest loads wherever `deltamq` is installed: a queue in memory, and a real service, as fixtures.

Both load what they need when the first test asks for them: whoever asks for neither waits for nothing.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from deltamq.mq.client.cli.processes import ServiceProcess
    from deltamq.mq.testing.queue import MemoryQueue

#: Packages of the extra `service`.
_SERVICE: Final = ("fastapi", "httptools", "obstore", "uvicorn")


@pytest.fixture
def deltamq_memory() -> MemoryQueue:
    """A queue in memory, a new one for each test; time passes only in its `advance`."""
    from deltamq.mq.testing.queue import MemoryQueue

    return MemoryQueue()


@pytest.fixture(scope="session")
def deltamq_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service at `deltamq_service.url`, one for all tests, in a process of its own, on a temporary folder.

    It has the settings of a fresh installation (variables DELTAMQ_... are not handed on), and no jobs run beside it.
    """
    if any(importlib.util.find_spec(name) is None for name in _SERVICE):
        pytest.fail("deltamq_service starts a service: pip install 'deltamq[service]'", pytrace=False)
    from deltamq.mq.client.cli.processes import ServiceProcess

    environ = {name: value for name, value in os.environ.items() if not name.startswith("DELTAMQ_")}
    service = ServiceProcess(tmp_path_factory.mktemp("deltamq") / "warehouse", environ=environ)
    yield service
    service.close()
