"""The archive of Spark's classes, and the options with which a JVM is started."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from deltamq.jobs.setup.java import java_path
from deltamq.jobs.spark.class_archive import archive_options, archive_path, remove_others
from deltamq.jobs.spark.jvm_options import jvm_options


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java and a Spark, and an empty folder of jars."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("DELTAMQ_JARS", str(tmp_path / "jars"))
    for name in ("java", "spark/jars/spark-core.jar", "jars/delta.jar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path / "java"


def test_an_archive_is_used_from_the_moment_at_which_it_is_there(java: Path) -> None:
    assert archive_options(java) == ()
    archive_path(java).touch()
    assert archive_options(java)[-1] == f"-XX:SharedArchiveFile={archive_path(java)}"


@pytest.mark.parametrize("changed", ["java", "spark/jars/spark-core.jar", "spark/jars/another.jar"])
def test_another_java_and_another_spark_have_another_archive(java: Path, changed: str) -> None:
    before = archive_path(java)
    before.touch()
    (java.parent / changed).write_text("a newer release")
    now = archive_path(java)
    assert now != before and now.parent == before.parent
    assert archive_options(java) == ()
    now.touch()
    remove_others(now)
    assert {path.name for path in now.parent.iterdir()} == {now.name, "delta.jar"}


def test_a_java_that_is_a_link_is_the_one_that_it_leads_to(java: Path) -> None:
    link = java.with_name("link")
    link.symlink_to(java)
    assert archive_path(link) == archive_path(java)


def test_a_jvm_starts_without_a_word_when_its_archive_does_not_fit(java: Path) -> None:
    real = java_path()
    made = archive_path(java)
    archive = ["-XX:ArchiveClassesAtExit=" + str(made), "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    subprocess.run([real, *archive, "-cp", str(java.parent / "jars/delta.jar"), "-version"], check=True)
    assert made.is_file()
    command = [real, *archive_options(java), "-cp", str(java.parent / "spark/jars/spark-core.jar"), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    plain = subprocess.run([real, "-version"], capture_output=True, text=True, check=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)


@pytest.mark.parametrize("before", [None, "-Xmx1g"])
def test_options_are_added_to_those_that_are_there_and_taken_away_again(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is None:
        monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    else:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", before)
    with pytest.raises(ValueError), jvm_options("-Xint", "-Xrs"):
        assert os.environ["SPARK_SUBMIT_OPTS"].split() == [*([before] if before else []), "-Xint", "-Xrs"]
        raise ValueError
    assert os.environ.get("SPARK_SUBMIT_OPTS") == before


def test_an_option_with_spaces_stays_one_option() -> None:
    with jvm_options("-Xrs", r'-Dpath=/my folder/"x"\y'):
        assert shlex.split(os.environ["SPARK_SUBMIT_OPTS"])[-2:] == ["-Xrs", r'-Dpath=/my folder/"x"\y']
