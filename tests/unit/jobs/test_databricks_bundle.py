"""The bundle in conf/databricks against the definitions that Databricks publishes for bundles (SPEC SPARK-6).

The definitions refuse fields that they do not know. What a workspace alone can tell, such as whether there is a machine
of that name, is not looked at here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job

from deltamq.jobs.cli.jobs_group import jobs_command
from deltamq.jobs.run.registry import all_jobs
from deltamq.jobs.setup.jars import PROJECT_FOLDER
from deltamq.jobs.submit.task import main

FOLDER = PROJECT_FOLDER / "conf" / "databricks"
TARGETS = ("cluster", "serverless")


def _read(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return read


def _jobs(target: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = _read(f"{target}.yml")["targets"][target]["resources"]["jobs"]
    return found


def _tasks(target: str) -> list[dict[str, Any]]:
    return [task for job in _jobs(target).values() for task in job["tasks"]]


def _names(task: dict[str, Any]) -> list[str]:
    """The jobs of ours that a task names: what comes after `run` and before the first flag."""
    words = task["python_wheel_task"]["parameters"][1:]
    return words[: next(i for i, word in enumerate(words) if word.startswith("--"))]


@pytest.mark.parametrize("target", TARGETS)
def test_spark_06_every_job_of_the_bundle_has_only_fields_that_databricks_knows(target: str) -> None:
    for name, job in _jobs(target).items():
        read = Job.from_dict(job)
        assert str(read.name).startswith(name)
        assert (read.schedule is None) != (read.continuous is None), "it runs by a clock or all the time"


def test_spark_06_the_check_refuses_a_field_that_there_is_not() -> None:
    job = _jobs("cluster")["deltamq_queue"]
    with pytest.raises(ValueError, match="max_concurent_runs"):
        Job.from_dict({**job, "max_concurent_runs": 1})


@pytest.mark.parametrize("target", TARGETS)
def test_spark_06_every_job_of_ours_is_in_the_bundle(target: str) -> None:
    scheduled = {name for task in _tasks(target) for name in _names(task)}
    assert {job.name for job in all_jobs()} == scheduled


@pytest.mark.parametrize("target", TARGETS)
def test_spark_06_a_task_calls_what_the_wheel_has_with_flags_that_there_are(target: str) -> None:
    scripts = (PROJECT_FOLDER / "pyproject.toml").read_text(encoding="utf-8")
    known = {flag for option in jobs_command.commands["run"].params for flag in option.opts}
    for task in _tasks(target):
        wheel = task["python_wheel_task"]
        assert f'{wheel["entry_point"]} = "{main.__module__}:main"' in scripts
        assert wheel["parameters"][0] == "run"
        assert {word for word in wheel["parameters"] if word.startswith("--")} <= known | {"--engine"}
        assert ("job_cluster_key" in task) != ("environment_key" in task)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yml")), ids=lambda path: path.stem)
def test_spark_06_every_variable_is_declared_and_no_volume_is_recommended(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{var\.(\w+)\}", text)) <= set(_read("databricks.yml")["variables"])
    assert "/Volumes/" not in re.sub(r"Not a volume \(/Volumes/\.\.\.\)", "", text)


def test_spark_06_the_bundle_has_the_files_and_targets_that_it_names() -> None:
    bundle = _read("databricks.yml")
    assert sorted(["databricks.yml", *bundle["include"]]) == sorted(path.name for path in FOLDER.glob("*.yml"))
    assert sorted(bundle["targets"]) == sorted(TARGETS)
    assert bundle["variables"]["wheel"]["default"] == "../../dist/*.whl"


@pytest.mark.parametrize("target", TARGETS)
def test_spark_06_every_job_has_what_the_jobs_need_beside_spark_and_the_client(target: str) -> None:
    locked = re.search(r"^obstore==\S+", (PROJECT_FOLDER / "requirements.lock").read_text(encoding="ascii"), re.M)
    assert locked is not None
    text = (FOLDER / f"{target}.yml").read_text(encoding="utf-8")
    assert text.count("${var.wheel}") == text.count(locked[0]) > 0
