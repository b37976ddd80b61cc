"""A server of Spark Connect on this machine, started as jobs/README.md says, and clients in processes without a JVM."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark

from deltamq.jobs.setup.jars import PROJECT_FOLDER, jars_folder, pinned_jars
from deltamq.jobs.spark.shipped import pack
from tests.free_ports import free_port
from tests.spark.cluster import python_without_project

__all__ = ["ConnectServer", "connect_server"]

_START_S: Final = 400.0


class ConnectServer:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.remote = f"sc://127.0.0.1:{port}"

    def run(self, *command: str, timeout_s: float = 1_200.0) -> subprocess.CompletedProcess[str]:
        """Run a client in an environment without Java."""
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))},
            "SPARK_REMOTE": self.remote,
            "JAVA_HOME": "/nowhere",
        }
        return subprocess.run(
            command, env=environment, cwd=PROJECT_FOLDER, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python code in such a client."""
        return self.run(sys.executable, "-c", code, *arguments)


@contextlib.contextmanager
def connect_server(folder: Path, *, with_project: bool = False) -> Iterator[ConnectServer]:
    """Run a server whose Python has the packages but, by default, not the project: clients bring it."""
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(pyspark.__file__).parent
    port = free_port()
    settings = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local[2]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--properties-file", str(PROJECT_FOLDER / "conf" / "spark-connect.properties")),
        *("--jars", ",".join(str(jars_folder() / name) for name in pinned_jars())),
        *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
        "spark-internal",
    ]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python_without_project(folder / "python")),
    }
    if with_project:
        environment["PYTHONPATH"] = str(pack(folder / "deltamq.zip"))
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
    try:
        _wait(server, port, log)
        yield ConnectServer(port)
    finally:
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"the server did not start:\n{log.read_text(errors='replace')[-2_000:]}")
