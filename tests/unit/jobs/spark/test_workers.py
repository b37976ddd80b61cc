"""Spark's Python workers connect before they import anything (SPARK-2)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deltamq.jobs.spark import workers

_RUNNER = """
import os, socket, sys
sys.stdin.readline()  # what takes long on a busy machine
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.settimeout(15)
connection.connect(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
connection.sendall(b"hello")
with connection.makefile("rb") as answer:
    print(answer.readline().decode().strip(), socket.socket.connect.__name__)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A `pyspark` whose runner of streams takes as long to start as the test wants."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("")
    (tmp_path / "pyspark" / "runner.py").write_text(_RUNNER)
    return tmp_path


@contextmanager
def _started(folder: Path, path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    places = [str(Path(workers.__file__).parent), str(folder)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHON_WORKER_FACTORY_SOCK_PATH": str(path)}
    command = [sys.executable, *arguments]
    process = subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        yield process


@pytest.fixture
def listening(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(folder / "s"))
        server.listen()
        server.settimeout(60)
        yield server


def test_spark_02_a_worker_connects_before_it_imports_anything(folder: Path, listening: socket.socket) -> None:
    with _started(folder, folder / "s", "-m", "pyspark.runner") as process:
        connection, _ = listening.accept()  # it waits for a line from here, and is connected
        with connection:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert connection.recv(100) == b"hello", "pyspark uses this connection"
            connection.sendall(b"welcome\n")
            assert process.stdout.read() == "welcome connect\n"


def test_spark_02_a_worker_that_finds_nobody_says_so_as_it_did(folder: Path) -> None:
    with _started(folder, folder / "nobody", "-m", "pyspark.runner") as process:
        told, _ = process.communicate("go on\n")
    assert (process.returncode, "FileNotFoundError" in told) == (1, True)


def test_spark_02_other_processes_connect_to_nothing_and_have_their_own_start(
    folder: Path, listening: socket.socket
) -> None:
    (folder / "sitecustomize.py").write_text("print('the machine')")
    with _started(folder, folder / "s", "-c", "print('a program')") as process:
        assert process.communicate()[0] == "the machine\na program\n"
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.accept()
