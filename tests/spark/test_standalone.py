"""Jobs and reads on a standalone cluster whose machines do not have the project (SPEC SPARK-6)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from deltamq.jobs.setup.jars import PROJECT_FOLDER, jars_folder, pinned_jars
from deltamq.tables.state.schema import POP_CHECKPOINTS
from deltamq.tables.state.table import read_state_log
from tests.free_ports import free_port
from tests.queue_tables import QueueTables
from tests.spark.cluster import Cluster, cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]

_DELTAMQ = str(Path(sys.executable).with_name("deltamq"))
_SUBMITTED = str(PROJECT_FOLDER / "jobs" / "submit" / "deltamq_jobs.py")
#: Each task of the query appends its executor's name to a file, then waits until the test lets it go.
_SLOW = """
import sys, time
from pathlib import Path
import psutil
from deltamq.jobs.sql import spark_session

told, let_go = Path(sys.argv[2]), Path(sys.argv[3])
spark = spark_session("slow", warehouse=sys.argv[1])

def slowly(batches):
    for batch in batches:
        with told.open("a") as file:
            file.write(" ".join(str(parent.pid) for parent in psutil.Process().parents()) + "\\n")
        while not let_go.exists():
            time.sleep(0.05)
        yield batch

read = spark.read.format("mq").option("topic", "orders").option("minPartitions", 6).load()
rows = read.select("offset").mapInArrow(slowly, "offset BIGINT").collect()
print(sorted(row.offset for row in rows))
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Sixty messages, of which two are given away."""
    made = QueueTables(tmp_path / "w")
    topic, group = made.topic("orders"), made.group("billing")
    made.send(topic, *map(str, range(60)))
    made.pop(group, topic, [0, 1])
    made.close()
    return tmp_path / "w"


def _start(running: Cluster, *command: str, **environment: str) -> subprocess.Popen[str]:
    environ = {**running.environment, **environment}
    return subprocess.Popen(
        command, env=environ, cwd=PROJECT_FOLDER, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _ended(process: subprocess.Popen[str]) -> str:
    out, err = _told(process)
    assert process.returncode == 0, out + err
    return out


def _told(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=1_200)
    finally:
        process.kill()


def _in_flight(warehouse: Path) -> int:
    made = QueueTables(warehouse)
    try:
        log = read_state_log(made.warehouse.store, POP_CHECKPOINTS)
        return 0 if log is None else len(log.files)
    finally:
        made.close()


@pytest.mark.long
def test_spark_06_the_machines_of_the_cluster_do_not_have_the_project(running: Cluster, tmp_path: Path) -> None:
    told = subprocess.run(
        [str(running.python), "-c", "import pyarrow, msgspec, obstore; import jobs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'jobs'"


@pytest.mark.promise("PIPE-17")
@pytest.mark.long
def test_spark_06_jobs_run_on_a_cluster_by_their_master(running: Cluster, warehouse: Path) -> None:
    command = (_DELTAMQ, "jobs", "run", "merge", "--once", "--warehouse", str(warehouse))
    out = _ended(_start(running, *command, "--master", running.master))
    assert "job=merge ok" in out
    assert _in_flight(warehouse) > 0


@pytest.mark.promise("PIPE-17")
@pytest.mark.long
def test_spark_06_spark_submit_says_where_jobs_run(running: Cluster, warehouse: Path) -> None:
    home = Path(pyspark.__file__).parent
    jars = ",".join(str(jars_folder() / name) for name in pinned_jars())
    submit = (str(home / "bin" / "spark-submit"), "--master", running.master)
    run = (_SUBMITTED, "run", "merge", "verify", "--once", "--warehouse", str(warehouse))
    environment = {"SPARK_HOME": str(home), "PYSPARK_DRIVER_PYTHON": sys.executable}
    out = _ended(_start(running, *submit, "--jars", jars, *run, **environment))
    assert "job=merge ok" in out
    assert "job=verify ok" in out
    assert _in_flight(warehouse) > 0
    without = _start(running, *submit, *run, **environment)
    out, err = _told(without)
    assert without.returncode != 0
    assert "spark-submit was not given Delta" in out + err


@pytest.mark.promise("PIPE-18")
@pytest.mark.long
def test_spark_06_a_machine_that_dies_in_the_middle_changes_nothing(warehouse: Path, tmp_path: Path) -> None:
    told, let_go = tmp_path / "told", tmp_path / "let-go"
    with cluster(tmp_path / "dying") as dying:
        arguments = (sys.executable, "-c", _SLOW, str(warehouse), str(told), str(let_go))
        reading = _start(dying, *arguments, DELTAMQ_JOBS_MASTER=dying.master)
        # Tasks wait for `let_go`: an executor that starts late finds some of the six without a place.
        _wait_for(reading, lambda: told.exists() and str(dying.workers[0].pid) in told.read_text().split())
        dying.kill(0)
        let_go.touch()
        assert json.loads(_ended(reading)) == list(range(60))


@pytest.mark.long
def test_spark_03_a_topic_streams_into_another_on_a_cluster(running: Cluster, warehouse: Path, tmp_path: Path) -> None:
    made = QueueTables(warehouse)
    for name in ("copies", "numbers"):
        made.topic(name, 2)
    made.close()
    command = (sys.executable, "-m", "tests.spark.stream_application", str(warehouse), str(tmp_path / "checkpoint"))
    # Spark plans a stream on the driver in the Python of the tasks, which gets no files of the application there
    driver = {"DELTAMQ_JOBS_MASTER": running.master, "PYTHONPATH": str(PROJECT_FOLDER / ".path")}
    found = json.loads(_ended(_start(running, *command, **driver)))
    assert found == {"copies": sorted(map(str, range(60))), "numbers": sorted(map(str, range(30)))}


def _wait_for(process: subprocess.Popen[str], is_so: Callable[[], bool], timeout_s: float = 400.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert process.poll() is None, process.communicate()[1][-3_000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.promise("PIPE-21")
def test_spark_06_a_master_that_is_not_there_is_told_in_seconds(warehouse: Path) -> None:
    gone = f"spark://127.0.0.1:{free_port()}"
    command = [_DELTAMQ, "jobs", "run", "merge", "--once", "--warehouse", str(warehouse), "--master", gone]
    ran = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert f"Spark master {gone} does not answer" in ran.stdout + ran.stderr
