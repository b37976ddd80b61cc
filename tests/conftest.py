"""Fixtures of all tests: an environment without settings of DeltaMQ, one Spark session, and the schedule of files."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.store_proxy import StoreProxy

# A developer's settings must not change a test's outcome; only the place of the jars is kept.
for _name in [name for name in os.environ if name.startswith("DELTAMQ_") and name != "DELTAMQ_JARS"]:
    del os.environ[_name]

# A shell starts background processes with Ctrl-C ignored, and all processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The JVMs of tests live for seconds: compiling for the long run costs more than it saves. So does the Java code that
# Spark generates and compiles for each query of a few rows: without it, tests of the merge take 143 s instead of 204 s.
# `make faults` leaves Spark as users have it.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC "
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)

# Every run of the tests uses the same examples; `make faults` looks for new ones.
# No deadlines: the time of one example depends on the machine.
settings.register_profile("repeatable", max_examples=20, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("searching", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("repeatable")


#: Files that share something slow to start: the main job, a Spark session, the S3 server. A session takes a minute of
#: a core until it is warm, so one process has it, and the main job with it.
_TOGETHER: Final = {
    "tests/e2e/test_documents.py": "Spark",
    "tests/e2e/test_main_job.py": "Spark",
    "tests/faults/test_full_disk_under_spark.py": "Spark",
    "tests/contract/test_delete_below.py": "S3",
    "tests/contract/test_store.py": "S3",
    "tests/faults/test_failing_store.py": "store",
    "tests/history/test_store_faults.py": "store",
}
#: Folders whose tests are all run by `make faults`.
_FAULTS: Final = ("tests/faults/", "tests/history/")
#: What takes long comes first, so that no process has it left at the end.
_FIRST: Final = (
    "Spark",
    "tests/history/test_faults.py",
    "tests/faults/test_killed_streams.py",
    "tests/faults/test_crash_states.py",
    "tests/history/test_orderly.py",
    "tests/e2e",
    "tests/faults",
    "tests/history",
    "tests/clients",
    "tests/api",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each process of `pytest -n` whole files, and files that belong together to the same process."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return Files(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of faults; run tests that last first, if several processes share the tests."""
    for item in items:
        if item.nodeid.startswith(_FAULTS):
            item.add_marker("fault")
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def _scope(nodeid: str) -> str:
    """Return what a process gets as a whole: a file, or files that share something."""
    file = nodeid.partition("::")[0]
    return _TOGETHER.get(file, "Spark" if file.startswith("tests/spark/") else file)


def _rank(item: pytest.Item) -> tuple[int, int]:
    """Return the place of what the item belongs to in the order of starts.

    Files of one folder do the same: they wait for a stub service, or they compute. In a mixed order, the processes that
    wait leave their core to one that computes.
    """
    scope = _scope(item.nodeid)
    found = next((rank for rank, first in enumerate(_FIRST) if scope.startswith(first)), None)
    return (len(_FIRST), zlib.crc32(scope.encode())) if found is None else (found, 0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of garbage from looking at thousands of tests again and again, and while they are made."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark as users get it. Its default warehouse is empty: a test names its own in the option `warehouse`."""
    # imported here, because starting Spark, even importing it, would delay tests that do not use it
    from deltamq.jobs.spark.session import spark_session

    session = spark_session("tests", warehouse=tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def proxied_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProxy]:
    """An S3 server behind a proxy that makes faults; without one, tests that need it are skipped with the reason."""
    from tests.s3_server import ServerUnavailable
    from tests.store_proxy import store_proxy

    try:
        with store_proxy(tmp_path_factory.mktemp("store")) as proxy:
            proxy.set_latency(put_ms=5, get_ms=5)
            yield proxy
    except ServerUnavailable as error:
        pytest.skip(str(error))
