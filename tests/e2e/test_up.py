"""`deltamq up`: service and jobs in one command, here on a machine without Java."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deltamq import PopClient, Producer
from tests.e2e.up_process import PATIENCE_S, Up


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "w", "--port", "0")
    yield made
    made.close()


def test_what_is_not_acknowledged_comes_again_and_sigterm_ends_all_with_0(up: Up) -> None:
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
    assert up.process.wait(PATIENCE_S) == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children are not told of their parent's end")
def test_a_kill_ends_service_and_jobs(up: Up) -> None:
    up.line_with("serving ")
    children = up.children()
    up.process.kill()
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert len(gone) == 2 and not alive


@pytest.mark.long
def test_a_service_that_cannot_start_ends_the_jobs_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = Up(tmp_path / "w", "--port", str(taken.getsockname()[1]))
        assert up.process.wait(PATIENCE_S) == 1
    assert up.line_with("Error: ")
    up.close()
