"""A standalone Spark cluster on this machine: a master and workers of one core each, each in a process of its own.

Its Python has the locked packages but not the project, as on the machines of a cluster: modules of the project that
tasks import were shipped to them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pyspark

from tests.free_ports import free_port

__all__ = ["Cluster", "cluster", "python_without_project"]

_START_S: Final = 400.0
_LOOK_S: Final = 0.05


class Cluster:
    """A running cluster."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder = folder
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))},
            "PYSPARK_PYTHON": str(python),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self.python = python
        self.master = ""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a driver, with the Python that all machines have."""
        return dict(self._environment)

    def start(self, workers: int, memory: str) -> None:
        """Start the master and the workers, and wait until the workers are registered."""
        port, ui = free_port(), free_port()
        self._run("master", "org.apache.spark.deploy.master.Master", "--port", str(port), "--webui-port", str(ui))
        self.master = f"spark://127.0.0.1:{port}"
        self._wait("master", "I have been elected leader")
        for number in range(workers):
            self.workers.append(self._worker(number, memory))
        for number in range(workers):
            self._wait(f"worker-{number}", "Successfully registered with master")

    def executors(self, worker: int) -> list[psutil.Process]:
        """Return the executors that a worker has started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.workers[worker].pid).children(recursive=True)
            return [one for one in children if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]
        return []

    def kill(self, worker: int) -> None:
        """Kill a worker with its executors and their Python processes, as a machine that loses power."""
        process = psutil.Process(self.workers[worker].pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        self.workers[worker].wait()

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
            process.kill()
            process.wait()

    def _worker(self, number: int, memory: str) -> subprocess.Popen[bytes]:
        work = self._folder / f"work-{number}"
        what = "org.apache.spark.deploy.worker.Worker"
        sizes = ("--cores", "1", "--memory", memory, "--work-dir", str(work), "--webui-port", str(free_port()))
        return self._run(f"worker-{number}", what, *sizes, self.master)

    def _run(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = {**self._environment, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(home / "bin" / "spark-class"), main, "--host", "127.0.0.1", *arguments]
            process = subprocess.Popen(command, env=environment, cwd=self._folder, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def _wait(self, name: str, sign: str) -> None:
        log = self._folder / f"{name}.log"
        deadline = time.monotonic() + _START_S
        while sign not in (told := log.read_text(errors="replace")):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not start:\n{told[-2_000:]}")
            time.sleep(_LOOK_S)


@contextlib.contextmanager
def cluster(folder: Path, *, workers: int = 2, memory: str = "1g") -> Iterator[Cluster]:
    """Run a cluster whose files lie in `folder`; `memory` is what each worker gives to executors."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Cluster(folder, python_without_project(folder / "python"))
    try:
        made.start(workers, memory)
        yield made
    finally:
        made.stop()


def python_without_project(folder: Path) -> Path:
    """Return a Python that sees the packages of this one, but not what is installed from a source folder."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "lib" / version / "site-packages"
    # Python does not read .pth files in a folder that a .pth file names; an editable install is such a file
    (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return folder / "bin" / "python"
