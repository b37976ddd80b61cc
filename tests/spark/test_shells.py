"""Spark's own shells, started and typed into as jobs/README.md says (SPEC SPARK-13)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.main_job import ROOT
from tests.queue_tables import QueueTables
from tests.unit.jobs.warehouses import Filled

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

#: Makes a catalog of the topics in a metastore.
_CATALOG = """
import sys
from deltamq.jobs.sql import register_tables, spark_session
spark = spark_session("catalog", warehouse=sys.argv[1], **{
    "spark.sql.catalogImplementation": "hive", "spark.master": "local[1]",
    "spark.hadoop.javax.jdo.option.ConnectionURL": sys.argv[2]})
register_tables(spark, "deltamq")
spark.stop()
"""
_METASTORE = "spark.hadoop.javax.jdo.option.ConnectionURL"
_VIEW = 'spark.sql("SELECT count(*) FROM deltamq.topic_orders").first().getLong(0)'


class Shell(NamedTuple):
    """What the document says: the commands that start a shell, and the lines that are typed into it."""

    commands: str
    typed: list[str]


def shell_of(title: str, prompt: str, warehouse: str) -> Shell:
    """Return what jobs/README.md says under `title`, with another warehouse."""
    text = (ROOT / "jobs" / "README.md").read_text(encoding="utf-8").partition(f"*{title}*")[2]
    block = re.search(r"\n\n((?:    .*\n)+)", text)
    assert block is not None
    lines = [line[4:].replace('"warehouse', f'"{warehouse}') for line in block[1].splitlines()]
    typed = [line.removeprefix(prompt) for line in lines if line.startswith(prompt)]
    return Shell("\n".join(line for line in lines if not line.startswith(prompt)), typed)


def _environ(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1"} | more


def test_spark_13_a_pyspark_shell_sees_what_is_stored_at_each_action(filled: Filled, tmp_path: Path) -> None:
    for key, bodies in (("a", [b"x"] * 3), ("b", [b"x"] * 2)):
        filled.append("orders", "orders@broker-a", *bodies, key=key)
    shell = shell_of("A PySpark shell", ">>> ", filled.uri)
    # the interpreter takes its input for a terminal
    environ = _environ(PYSPARK_DRIVER_PYTHON_OPTS="-i", PYTHONUNBUFFERED="1")
    with (
        (tmp_path / "errors").open("w+") as errors,
        subprocess.Popen(
            ["bash", "-c", shell.commands],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None

        def answer(*lines: str) -> str | None:
            """Type lines; return the next pair of numbers that the shell prints, None if it ends."""
            process.stdin.write("".join(f"{line}\n" for line in lines))
            process.stdin.flush()
            return next((line.strip() for line in process.stdout if re.match(r"\(\d+, \d+\)$", line)), None)

        assert answer(*shell.typed) == "(5, 3)", (tmp_path / "errors").read_text()
        assert answer(shell.typed[-1]) == "(5, 3)"
        filled.append("orders", "orders@broker-a", *[b"x"] * 4, key="a")
        assert answer(shell.typed[-1]) == "(9, 7)"
        process.stdin.close()
        assert process.wait() == 0


def test_spark_13_a_scala_shell_reads_tables_and_is_refused_the_format(tmp_path: Path) -> None:
    warehouse, metastore = tmp_path / "warehouse", f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    with contextlib.closing(QueueTables(warehouse)) as tables:
        tables.send(tables.topic("orders"), "a", "b")
    subprocess.run(
        [sys.executable, "-c", _CATALOG, str(warehouse), metastore], cwd=tmp_path, env=_environ(), check=True
    )
    shell = shell_of("A Scala shell", "scala> ", str(warehouse))
    settings = (
        f"--conf spark.sql.catalogImplementation=hive --conf '{_METASTORE}={metastore}' "
        f"--driver-java-options -Dderby.system.home={tmp_path}"
    )
    typed = [*shell.typed, _VIEW, 'spark.read.format("mq").option("topic", "orders").load()', ":quit"]
    done = subprocess.run(
        ["bash", "-c", f"{shell.commands} {settings}"],
        cwd=ROOT,
        env=_environ(),
        input="".join(f"{line}\n" for line in typed),
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"val res\d+: Long = (\d+)", done.stdout) == ["2", "2"], done.stdout + done.stderr
    assert "[DATA_SOURCE_NOT_FOUND]" in done.stdout + done.stderr
