"""Which settings a session gets, by where it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltamq.jobs.setup.jars import DELTA, S3A, jars_folder, pinned_jars, wrong_jars
from deltamq.jobs.setup.java import JavaMissing
from deltamq.jobs.spark.masters import check_master, check_remote, is_local
from deltamq.jobs.spark.s3a import s3a_settings, task_environment
from deltamq.jobs.spark.session_settings import session_jars, session_settings
from deltamq.mq.errors import Refused, Unavailable
from deltamq.tables.config import Config, load
from tests.free_ports import free_port


def _conf(master: str) -> Config:
    return load(overrides={"jobs.master": master}, environ={})


def test_spark_06_what_is_of_this_machine_alone_does_not_reach_a_cluster(tmp_path: Path) -> None:
    local = session_settings(_conf("local[2]"), str(tmp_path))
    cluster = session_settings(_conf("spark://host:7077"), str(tmp_path))
    assert set(local) - set(cluster) == {
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.python.unix.domain.socket.enabled",
        "spark.executorEnv.PYTHONPATH",
        "spark.sql.warehouse.dir",
        "spark.sql.streaming.checkpointFileManagerClass",
    }
    assert cluster["spark.master"] == "spark://host:7077"
    assert {key: local[key] for key in cluster if key != "spark.master"} == {
        key: value for key, value in cluster.items() if key != "spark.master"
    }


def test_spark_06_a_profile_without_a_master_leaves_it_to_spark(tmp_path: Path) -> None:
    assert "spark.master" not in session_settings(_conf(""), str(tmp_path))
    asked = session_settings(_conf(""), str(tmp_path), {"spark.master": "local[1]"})
    assert asked["spark.driver.host"] == "127.0.0.1"


def test_spark_06_one_environment_is_enough_for_spark_on_s3() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/root",
    }
    made = s3a_settings(environ)
    assert {key.removeprefix("spark.hadoop.fs.s3a."): value for key, value in made.items() if "fs.s3a." in key} == {
        "endpoint": "http://127.0.0.1:9000",
        "connection.ssl.enabled": False,
        "path.style.access": True,
        "endpoint.region": "eu-west-1",
    }
    assert "secret" not in str(made), "Spark takes credentials from the environment by itself"
    assert sorted(task_environment(environ)) == [
        "spark.executorEnv.AWS_ACCESS_KEY_ID",
        "spark.executorEnv.AWS_ENDPOINT_URL",
        "spark.executorEnv.AWS_REGION",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
    ]


def test_spark_06_amazons_own_servers_need_no_endpoint() -> None:
    assert not [key for key in s3a_settings({"AWS_SKIP_SIGNATURE": "true"}) if "endpoint" in key or "path" in key]
    virtual = s3a_settings({"AWS_ENDPOINT_URL": "https://s3.host", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"})
    assert virtual["spark.hadoop.fs.s3a.path.style.access"] is False


def test_spark_06_the_log_store_of_state_tables_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/nowhere")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    made = session_settings(_conf("local[1]"), "s3://bucket/w")
    assert made["spark.delta.logStore.s3.impl"] == "io.delta.storage.S3SingleDriverLogStore"
    assert "spark.sql.streaming.checkpointFileManagerClass" not in made, "renaming is not atomic there"
    assert not [key for key in made if "executorEnv.AWS_" in key], "tasks have this process's environment"


def test_spark_06_missing_jars_are_fetched_on_first_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in pinned_jars(DELTA):
        (tmp_path / name).symlink_to(jars_folder() / name)
    monkeypatch.setenv("DELTAMQ_JARS", str(tmp_path))
    session_jars("/a/folder", {})
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # what fetches them
    with pytest.raises(JavaMissing, match="/nowhere"):
        session_jars("s3://bucket/w", {})
    assert sorted(wrong_jars(tmp_path, S3A)) == sorted(pinned_jars(S3A))


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]"])
def test_spark_06_local_masters(master: str) -> None:
    assert is_local(master)
    check_master(master)


def test_spark_06_a_master_that_does_not_answer_is_told_at_once_and_by_name() -> None:
    first, second = free_port(), free_port()
    with pytest.raises(Unavailable, match=f"spark://localhost:{first},localhost:{second} does not answer"):
        check_master(f"spark://localhost:{first},localhost:{second}")
    with pytest.raises(Unavailable, match=f"Spark Connect at sc://localhost:{first}/ does not answer"):
        check_remote(f"sc://localhost:{first}/;token=hidden")
    with pytest.raises(Refused, match="is not host:port"):
        check_master("spark://host:port")
