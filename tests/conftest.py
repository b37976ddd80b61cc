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

# The JVMs of tests live for seconds: to compile for the long run costs more than it brings.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC")

# A change is judged by the same examples every time; `make faults` looks for new ones.
# No deadlines: how long one example takes is the machine's affair.
settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("searching", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("repeatable")


#: Files that share what takes long to start: the main job, the S3 server.
_MAIN_JOB: Final = ("tests/e2e/test_documents.py", "tests/e2e/test_main_job.py")
_TOGETHER: Final = {
    **dict.fromkeys(_MAIN_JOB, "main job"),
    "tests/contract/test_delete_below.py": "S3",
    "tests/contract/test_store.py": "S3",
}
#: Folders whose files take long come first, so that no process is left with one of them at the end.
_FIRST: Final = ("tests/e2e", "tests/spark", "tests/faults", "tests/history", "tests/api")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each process of `pytest -n` whole files, and what belongs together to one."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return _TOGETHER.get(file, file)

    return Files(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long, where several processes share the tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[int, bool]:
    """The folder's place; the main job, which takes a core as long as it serves, is the last of its folder."""
    folder = next((rank for rank, folder in enumerate(_FIRST) if item.nodeid.startswith(folder)), len(_FIRST))
    return folder, item.nodeid.partition("::")[0] in _MAIN_JOB


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark as users get it. Its default warehouse is empty: a test names its own in the option `warehouse`."""
    # starting Spark, even importing it, costs what tests without it should not pay
    from jobs.sql import spark_session

    session = spark_session("tests", warehouse=tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()
