"""The jars are pinned, checked, and only fetched when they are not there."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pyspark
import pytest

from deltamq.jobs.setup import jars
from deltamq.jobs.setup.jars import (
    DELTA,
    PROJECT_FOLDER,
    S3A,
    JarsUnusable,
    fetch_jars,
    jars_folder,
    pinned_jars,
    wrong_jars,
)


def test_only_what_spark_does_not_ship_is_pinned() -> None:
    assert sorted(pinned_jars()) == ["delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"]
    assert all(len(digest) == 64 for digest in pinned_jars().values())


def test_for_s3_nothing_is_pinned_that_spark_ships_itself() -> None:
    spark = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    names = set(pinned_jars(S3A))
    assert f"hadoop-aws-{_version_of_hadoop(spark)}.jar" in names
    assert not {name.rpartition("-")[0] for name in names} & {name.rpartition("-")[0] for name in spark}


def _version_of_hadoop(jars: set[str]) -> str:
    return next(name for name in jars if name.startswith("hadoop-client-api-")).removesuffix(".jar").rpartition("-")[2]


def test_the_folder_is_the_checkouts_or_the_users_unless_the_environment_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert jars_folder({}) == PROJECT_FOLDER / ".jars"
    assert jars_folder({"DELTAMQ_JARS": "/opt/jars"}) == Path("/opt/jars")
    monkeypatch.setattr(jars, "PROJECT_FOLDER", tmp_path)  # as in an installed wheel
    assert jars_folder({}) == Path.home() / ".cache" / "deltamq" / "jars"
    assert jars_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/deltamq/jars")


def test_missing_and_altered_jars_are_named(tmp_path: Path) -> None:
    name, *others = sorted(pinned_jars())
    (tmp_path / name).write_bytes(b"altered")
    wrong = wrong_jars(tmp_path)
    assert wrong[name] == f"has sha256 {hashlib.sha256(b'altered').hexdigest()}, pinned is {pinned_jars()[name]}"
    assert [wrong[other] for other in others] == ["is missing"] * len(others)


def test_nothing_is_started_when_all_jars_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert [path.name for path in fetch_jars(jars_folder())] == list(pinned_jars())


def test_a_python_without_spark_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jars.importlib.util, "find_spec", lambda name: None)
    said: list[str] = []
    with pytest.raises(JarsUnusable, match=r"has no pyspark: pip install 'deltamq\[spark\]'"):
        fetch_jars(tmp_path / "jars", say=said.append)
    assert list((tmp_path / "jars").iterdir()) == []
    (line,) = said
    assert line.endswith(f".jar is missing and 1 more: fetching into {tmp_path / 'jars'}")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with pytest.raises(JarsUnusable, match=r"cannot be written .* DELTAMQ_JARS"):
        fetch_jars(tmp_path / "file" / "jars", say=lambda line: None)


def test_a_jar_with_another_content_is_not_installed(tmp_path: Path) -> None:
    fetched, folder = tmp_path / "fetched", tmp_path / "jars"
    fetched.mkdir()
    folder.mkdir()
    for name in pinned_jars():
        shutil.copy(jars_folder() / name, fetched / f"io.delta_{name}")
    altered = sorted(pinned_jars())[0]
    (fetched / f"io.delta_{altered}").write_bytes(b"altered")
    with pytest.raises(JarsUnusable, match="not installed"):
        jars._install(fetched, folder, DELTA)
    assert not (folder / altered).exists()


def test_ivys_log_is_cut_to_what_tells() -> None:
    log = "\n".join(["noise"] * 100 + ["  Server access error at url X (refused)"] * 2)
    told = jars._why(log, DELTA)
    assert told.count("Server access error") == 1
    assert "noise" not in told
    assert "JAVA_TOOL_OPTIONS" in told
