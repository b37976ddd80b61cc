"""What all tests share: an environment without settings of ours, one Spark session, and who runs beside whom."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A developer's settings must not decide what a test sees; the jars stay where they are.
for _name in [name for name in os.environ if name.startswith("DELTAMQ_") and name != "DELTAMQ_JARS"]:
    del os.environ[_name]

# A shell starts what runs in the background with Ctrl-C ignored, and everything that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A change is judged by the same examples every time; `make faults` looks for new ones.
settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.register_profile("searching", derandomize=False, print_blob=True)
settings.load_profile("repeatable")


#: Fixtures that a whole run has once: what uses one stays in one process of `pytest -n`.
_ONCE: Final = ("spark", "served", "s3", "writers")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together, when several processes share the tests, what shares a fixture, and each file's tests."""
    for item in items:
        shared = next((name for name in _ONCE if name in getattr(item, "fixturenames", ())), None)
        item.add_marker(pytest.mark.xdist_group(shared or item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark as users get it. Its default warehouse is empty: a test names its own in the option `warehouse`."""
    # starting Spark, even importing it, costs what tests without it should not pay
    from jobs.sql import spark_session

    session = spark_session("tests", warehouse=tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()
