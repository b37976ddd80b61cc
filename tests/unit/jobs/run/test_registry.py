"""A job is a documented function; without a docstring there is no job."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from deltamq.jobs.run.registry import Facts, all_jobs, job, jobs_named
from deltamq.mq.errors import Conflict, NotFound


def test_a_function_without_a_docstring_does_not_register() -> None:
    def run(spark: object, conf: object, now: datetime, shards: object = None) -> Facts:
        return {}

    with pytest.raises(SyntaxError, match="needs a docstring"):
        job(name="undocumented", every_s=lambda conf: 1)(run)
    assert "undocumented" not in [found.name for found in all_jobs()]


def test_two_jobs_cannot_have_one_name() -> None:
    def run(spark: object, conf: object, now: datetime, shards: object = None) -> Facts:
        """Another verify."""
        return {}

    assert "verify" in [found.name for found in all_jobs()]
    with pytest.raises(Conflict, match="there is a job 'verify' already"):
        job(name="verify", every_s=lambda conf: 1)(run)


@pytest.mark.parametrize("part", ["Input:", "Output:", "Idempotent:", "kill at any line"])
def test_every_job_says_what_it_reads_writes_repeats_and_leaves(part: str) -> None:
    assert [found.name for found in all_jobs() if part not in found.document] == []


def test_jobs_are_named_once_and_in_the_given_order() -> None:
    assert [found.name for found in jobs_named(("verify", "verify"))] == ["verify"]
    assert jobs_named(()) == all_jobs()
    with pytest.raises(NotFound, match=r"there is no job 'nope'; there are .*verify"):
        jobs_named(("nope",))


def test_without_spark_the_jobs_say_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; from deltamq.jobs.run.registry import all_jobs;"
        "from deltamq.mq.errors import Unavailable\n"
        "try: all_jobs()\nexcept Unavailable as error: print(error.code, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "package_missing the jobs need the package pyspark: pip install 'deltamq[spark]'\n"


def test_a_summary_is_one_sentence() -> None:
    assert [found.name for found in all_jobs() if not found.summary.endswith(".")] == []


def test_time_is_given_with_its_zone() -> None:
    from deltamq.jobs.run.last_run import utc_now

    assert utc_now().tzinfo is UTC


def test_f8_jobs_have_the_time_that_their_process_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history of clocks that jump sets `time.time`: names of jobs that were bound before must follow it, too."""
    from deltamq.jobs.run.last_run import utc_now

    monkeypatch.setattr(time, "time", lambda: 86_400.0)
    assert utc_now() == datetime(1970, 1, 2, tzinfo=UTC)
