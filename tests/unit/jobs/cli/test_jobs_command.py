"""`deltamq jobs list` needs no Spark, and errors are one line."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from click.testing import CliRunner

from jobs.cli.jobs_command import jobs_command
from jobs.run.last_run import LastRun, write_last_run
from jobs.run.shard_lock import shard_lock
from jobs.run.storage import storage


def _invoke(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(jobs_command, list(arguments), catch_exceptions=False)
    return done.exit_code, done.output


def test_list_shows_what_a_job_does_and_that_it_never_ran(tmp_path: Path) -> None:
    code, output = _invoke("list", "--warehouse", str(tmp_path))
    assert code == 0
    assert "verify: Check that every partition" in output
    assert "every 3600 s; never ran" in output


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
    with shard_lock(storage(str(tmp_path)), "revive"):
        code, output = _invoke("run", "revive", "--no-wait", "--warehouse", str(tmp_path))
    assert code == 1
    assert output.startswith("Error: ")
    assert "job revive is running in another process" in output
    assert f"pid {os.getpid()}" in output
