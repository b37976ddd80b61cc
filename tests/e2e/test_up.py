"""`deltamq up`: service and jobs in one command, here on a machine without Java."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deltamq import PopClient, Producer
from tests.api.running import until

_UP = (sys.executable, "-m", "deltamq.mq.client.cli", "up")
_PATIENCE_S = 60.0


class _Up:
    """A process of `deltamq up`; its output goes to a file, which is read at any time."""

    def __init__(self, warehouse: Path, *flags: str) -> None:
        environ = {**os.environ, "JAVA_HOME": "/nowhere", "DELTAMQ_QUEUE_INVISIBLE_MS_MIN": "100"}
        command = [*_UP, "--warehouse", str(warehouse), *flags]
        self._output = warehouse.with_name("up.log")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ)

    def close(self) -> None:
        """End the command, if it runs."""
        self.process.terminate()
        self.process.wait(_PATIENCE_S)

    def line_with(self, part: str) -> str:
        """Return the first line that has this part, awaited; fail if none comes."""
        until(lambda: self._lines_with(part), _PATIENCE_S)
        return self._lines_with(part)[0]

    def _lines_with(self, part: str) -> list[str]:
        whole = self._output.read_text(errors="replace").rpartition("\n")[0]
        return [line for line in whole.splitlines() if part in line]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[_Up]:
    made = _Up(tmp_path / "w", "--port", "0")
    yield made
    made.close()


def test_what_is_not_acknowledged_comes_again_and_sigterm_ends_all_with_0(up: _Up) -> None:
    assert "do not run without Java" in up.line_with("warning")
    url = up.line_with("serving ").split()[1]
    with Producer(url) as producer, PopClient(url, "billing") as consumer:
        producer.send("orders", "once more")
        (message,) = consumer.pop("orders", invisible_ms=100, wait_ms=20_000).messages
        (again,) = consumer.pop("orders", wait_ms=20_000).messages
        assert (message.text, again.text, again.delivery_attempt) == ("once more", "once more", 2)
    children = up.children()
    assert len(children) == 2
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(_PATIENCE_S) == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children are not told of their parent's end")
def test_a_kill_ends_service_and_jobs(up: _Up) -> None:
    up.line_with("serving ")
    children = up.children()
    up.process.kill()
    gone, alive = psutil.wait_procs(children, timeout=_PATIENCE_S)
    assert len(gone) == 2 and not alive


@pytest.mark.long
def test_a_service_that_cannot_start_ends_the_jobs_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = _Up(tmp_path / "w", "--port", str(taken.getsockname()[1]))
        assert up.process.wait(_PATIENCE_S) == 1
    assert up.line_with("Error: ")
    up.close()
