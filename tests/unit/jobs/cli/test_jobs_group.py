"""`deltamq jobs list` needs no Spark, and errors are one line."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deltamq.jobs.cli.jobs_group import jobs_command
from deltamq.jobs.cli.options import conf_of
from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.last_run import Recorder, write_last_run
from deltamq.jobs.run.locks import shard_lock
from deltamq.jobs.run.run_once import HELD_BY_OTHERS, run_jobs
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.mq.client.cli import console
from deltamq.tables.config import load
from deltamq.tables.config_sections import Engine
from deltamq.tables.ops.job_runs import LastRun
from tests.queue_tables import QueueTables
from tests.unit.client.stub_service import StubService


def _invoke(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(jobs_command, list(arguments), catch_exceptions=False)
    return done.exit_code, done.output


def test_list_shows_what_a_job_does_and_that_it_never_ran(tmp_path: Path) -> None:
    (tmp_path / "topics").mkdir()
    code, output = _invoke("list", "--warehouse", str(tmp_path))
    assert code == 0
    assert "verify: Check that every partition" in output
    assert "every 3600 s; never ran" in output


def test_look_30_the_list_of_jobs_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "topics").mkdir()
    waits = iter([None])

    def wait(seconds: float) -> None:
        assert seconds == 2.5
        next(waits)

    monkeypatch.setattr(console.time, "sleep", wait)
    with pytest.raises(StopIteration):
        _invoke("list", "--watch", "2.5", "--warehouse", str(tmp_path))


def test_list_for_machines_tells_the_last_run_and_how_far_behind(tmp_path: Path) -> None:
    started = datetime.now(UTC) - timedelta(hours=2)
    run = LastRun(job="verify", started_at=started, seconds=1.5, ok=False, detail="broken", facts={"partitions": 4})
    write_last_run(storage(str(tmp_path)), run)
    code, output = _invoke("list", "--json", "--warehouse", str(tmp_path))
    (found,) = [job for job in json.loads(output) if job["name"] == "verify"]
    assert code == 0
    assert found["last_run"] == {
        "started_at": started.isoformat(),
        "seconds": 1.5,
        "ok": False,
        "detail": "broken",
        "facts": {"partitions": 4},
        "rows": 0,
        "rows_since": None,
    }
    assert 3600 <= found["behind_s"] < 3700
    assert "FAILED broken, 36" in _invoke("list", "--warehouse", str(tmp_path))[1]


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService() as found:
        yield found


@pytest.mark.parametrize("command", [("list",), ("show", "revive"), ("run", "--once"), ("run", "revive")])
@pytest.mark.parametrize("folder", ["none", "."], ids=["no folder", "another folder"])
def test_retry_7_jobs_make_no_warehouse(tmp_path: Path, command: tuple[str, ...], folder: str) -> None:
    (tmp_path / "src").mkdir()
    code, output = _invoke(*command, "--warehouse", str(tmp_path / folder))
    assert code == 1
    assert output.startswith(f"Error: there is no warehouse at {tmp_path}") and len(output.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_retry_7_a_warehouse_that_a_service_is_about_to_make_can_be_awaited(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    threading.Timer(0.2, lambda: (folder / "topics").mkdir(parents=True)).start()
    code, output = _invoke("run", "retain", "--once", "--engine", "local", "--warehouse", str(folder), "--wait", "60")
    assert code == 0, output
    code, output = _invoke("run", "retain", "--once", "--warehouse", str(tmp_path / "never"), "--wait", "0.01")
    assert code == 1 and "there is no warehouse" in output


def test_retry_7_jobs_take_the_warehouse_of_a_service(tmp_path: Path, stub: StubService) -> None:
    stub.warehouse = str(tmp_path)
    (tmp_path / "topics").mkdir()
    code, output = _invoke("list", "--url", stub.url)
    assert code == 0 and "revive: " in output
    code, output = _invoke("list", "--url", stub.url, "--warehouse", str(tmp_path))
    assert code == 2 and "give one of them" in output
    stub.warehouse = "/elsewhere"
    code, output = _invoke("run", "--once", "--url", stub.url)
    assert code == 1 and "/elsewhere, which is no folder of this machine" in output


def test_an_unknown_job_is_one_line(tmp_path: Path) -> None:
    code, output = _invoke("run", "nope", "--once", "--warehouse", str(tmp_path))
    assert code == 1
    assert output.startswith("Error: there is no job 'nope'; there are ")
    assert "verify" in output
    assert len(output.splitlines()) == 1


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    code, output = _invoke("list", "--profile", "nope", "--warehouse", str(tmp_path))
    assert code == 1
    assert output.startswith("Error: there is no ")
    assert len(output.splitlines()) == 1


def test_list_tells_rows_and_how_far_behind_a_job_says_it_is(tmp_path: Path) -> None:
    started = datetime.now(UTC)
    facts: dict[str, int | str] = {"rows": 2, "behind_ms": 1500}
    run = LastRun(
        job="revive", started_at=started, seconds=0.1, ok=True, detail="", facts=facts, rows=70, since=started
    )
    write_last_run(storage(str(tmp_path)), run)
    code, output = _invoke("list", "--warehouse", str(tmp_path))
    assert code == 0
    assert "ok rows=2 behind_ms=1500" in output
    assert "70 rows since " in output
    listed = json.loads(_invoke("list", "--json", "--warehouse", str(tmp_path))[1])
    (found,) = [job for job in listed if job["name"] == "revive"]
    assert found["last_run"]["rows"] == 70
    assert found["last_run"]["facts"]["behind_ms"] == 1500


def test_a_second_driver_refuses_and_names_the_first(tmp_path: Path) -> None:
    with shard_lock(storage(str(tmp_path)), "revive", "broker-a"):
        code, output = _invoke("run", "revive", "--no-wait", "--warehouse", str(tmp_path))
    assert code == 1
    assert output.startswith("Error: ")
    assert "job revive, shard broker-a, is running in another process" in output
    assert f"pid {os.getpid()}" in output


def test_look_13_jobs_log_their_runs_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = QueueTables(tmp_path)
    tables.send(tables.topic(), "a")
    tables.close()
    monkeypatch.setenv("DELTAMQ_JOBS_LOG_FORMAT", "json")
    arguments = ["run", "retain", "--once", "--engine", "local", "--warehouse", str(tmp_path)]
    done = CliRunner().invoke(jobs_command, arguments, catch_exceptions=False)
    (logged,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.exit_code, done.stdout) == (0, "")
    shown = ("level", "logger", "event", "job", "partitions")
    assert [logged[name] for name in shown] == ["INFO", "deltamq.jobs", "job_ok", "retain", "2"]
    with shard_lock(storage(str(tmp_path)), "retain"):
        failed = CliRunner().invoke(jobs_command, arguments, catch_exceptions=False)
    (logged,) = [json.loads(line) for line in failed.stderr.splitlines() if '"job_failed"' in line]
    assert failed.exit_code == 1
    assert logged["level"] == "ERROR" and "running in another process" in logged["message"]


def test_spark_07_list_shows_shards_and_their_owners(tmp_path: Path) -> None:
    store = storage(str(tmp_path))
    with shard_lock(store, "verify", holder=(me := Holder.this())):
        listed = json.loads(_invoke("list", "--json", "--warehouse", str(tmp_path))[1])
        shown = _invoke("list", "--warehouse", str(tmp_path))[1]
    (found,) = [job for job in listed if job["name"] == "verify"]
    (shard,) = found["shards"]
    assert (shard["shard"], shard["owner"]["application"], shard["owner"]["pid"]) == (
        "all",
        me.application,
        os.getpid(),
    )
    assert found["engine"] == "spark"
    assert f"shards all: {me} (application {me.application}) since " in shown
    listed = json.loads(_invoke("list", "--json", "--warehouse", str(tmp_path))[1])
    assert {shard["owner"] and "somebody" for job in listed for shard in job["shards"]} == {None}


def test_spark_07_list_tells_failures_in_a_row_and_an_error_that_is_over(tmp_path: Path) -> None:
    store = storage(str(tmp_path))
    recorder = Recorder(store, "verify")
    at = datetime(2026, 5, 1, tzinfo=UTC)
    for _ in range(2):
        recorder.note(LastRun(job="verify", started_at=at, seconds=1, ok=False, detail="no way"))
    recorder.flush()
    shown = _invoke("show", "verify", "--warehouse", str(tmp_path))[1]
    assert "2 failures in a row; last error 2026-05-01 00:00:00 UTC: no way" in shown
    assert "A kill at any line leaves" in shown
    recorder.note(LastRun(job="verify", started_at=at + timedelta(days=1), seconds=1, ok=True, detail=""))
    listed = json.loads(_invoke("list", "--json", "--warehouse", str(tmp_path))[1])
    (found,) = [job for job in listed if job["name"] == "verify"]
    assert (found["failures"], found["last_error"]["detail"], found["last_run"]["ok"]) == (0, "no way", True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine", "both"], "'both' is not one of 'local', 'spark'"),
        (["--master", "localhost:7077"], "'localhost:7077' is not a master of Spark: local[*]"),
        (["--master", "local[0]"], "is not a master of Spark"),
        (["--every", "0"], "0.0 is not in the range"),
    ],
)
def test_a_wrong_flag_is_named_with_what_would_be_right(tmp_path: Path, flags: list[str], said: str) -> None:
    code, output = _invoke("run", "revive", "--once", *flags, "--warehouse", str(tmp_path))
    assert code == 2
    assert said in output.replace("\n", " ")


def test_spark_06_engine_and_master_override_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAMQ_JOBS_ENGINE", "local")
    conf = conf_of(None, str(tmp_path), engine="spark", master="spark://host:7077")
    assert (conf.jobs.engine, conf.jobs.master) == (Engine.SPARK, "spark://host:7077")
    assert conf_of(None, str(tmp_path)).jobs.engine is Engine.LOCAL


def test_run_jobs_takes_what_is_free_and_says_who_has_the_rest(tmp_path: Path) -> None:
    conf = load(overrides={"warehouse.uri": str(tmp_path)})
    no_spark: Any = None
    held = ExitStack()
    store = storage(str(tmp_path))
    for broker in conf.service.brokers:
        held.enter_context(shard_lock(store, "revive", broker, Holder.this()))
    with held:
        facts = run_jobs(no_spark, conf, "revive", "retain")
    close_warehouses()
    assert list(facts["revive"]) == [HELD_BY_OTHERS]
    for broker in conf.service.brokers:
        assert f"job revive, shard {broker}, is running in another process (" in str(facts["revive"])
    assert facts["retain"]["rows"] == 0
    assert HELD_BY_OTHERS not in facts["retain"]
