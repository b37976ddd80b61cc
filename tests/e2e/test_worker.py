"""`deltamq worker`: handlers of a module, in processes that are killed, stopped and started again (SPEC CONS-14)."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deltamq import Admin, Producer
from tests.api.running import until
from tests.e2e.up_process import Up
from tests.free_ports import free_port

MODULE = """
import asyncio, gc, os, pathlib
from dataclasses import dataclass
import deltamq

@dataclass
class Order:
    id: int

def note(text):
    with open(pathlib.Path(__file__).with_name("handled"), "a") as file:
        file.write(text + chr(10))

@deltamq.handler(topic="orders", group="billing", concurrency=4)
async def book(order: Order):
    await asyncio.sleep(0.001)
    note(f"book {order.id}")

@deltamq.handler(topic="orders", group="audit", order=True)
def audit(message):
    note(f"audit {message.text}")

@deltamq.handler(topic="slow", group="billing")
def slow(text: str):
    note("slow began" if gc.get_freeze_count() else "slow began, and the collector looks at modules")
    while not pathlib.Path(__file__).with_name("go").exists():
        os.sched_yield()
    note("slow ended")
"""
_PATIENCE_S = 60.0


class Worker:
    """A process of `deltamq worker`, in a folder with the module `app`."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        self._folder = folder
        command = [sys.executable, "-m", "deltamq.mq.client.cli", "worker", *arguments, "--url", url]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)

    @property
    def printed(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def handled(self) -> list[str]:
        file = self._folder / "handled"
        return file.read_text().splitlines() if file.exists() else []

    def children(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(_PATIENCE_S)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "w", "--port", "0")
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "app.py").write_text(MODULE)
    return tmp_path / "app"


def test_cons_14_each_handler_gets_its_messages_and_a_killed_process_is_started_again(
    service: Up, folder: Path
) -> None:
    port = free_port()
    with Producer(service.url) as producer, Admin(service.url) as admin:
        producer.send_batch("orders", [f'{{"id": {number}}}' for number in range(20)])
        producer.send("orders", '{"id": "none"}')
        worker = Worker(folder, service.url, "app:book,audit", "--processes", "2", "--metrics-port", str(port))
        try:
            until(lambda: len(set(worker.handled())) == 41, _PATIENCE_S)
            assert {f"book {number}" for number in range(20)} < set(worker.handled())
            until(lambda: worker.printed.count("metrics at") == 2, _PATIENCE_S)
            assert "app:book" in worker.printed and "Order" in worker.printed and "by partition" in worker.printed
            until(lambda: "no Order: Expected `int`" in str(admin.dead_letters("billing")), _PATIENCE_S)
            metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
            assert 'deltamq_worker_messages_total{handler="app:book",group="billing",outcome="ok"}' in metrics
            killed = worker.children()[0]
            killed.kill()
            until(lambda: len(worker.children()) == 2 and killed not in worker.children(), _PATIENCE_S)
            producer.send_batch("orders", [f'{{"id": {number}}}' for number in range(20, 30)])
            until(lambda: {f"book {number}" for number in range(30)} < set(worker.handled()), _PATIENCE_S)
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(_PATIENCE_S) == 0, worker.printed
        finally:
            worker.close()


def test_cons_14_a_handler_that_runs_is_finished_before_the_process_ends(service: Up, folder: Path) -> None:
    with Producer(service.url) as producer, Admin(service.url) as admin:
        producer.send("slow", "x")
        worker = Worker(folder, service.url, "app:slow")
        try:
            until(lambda: worker.handled() == ["slow began"], _PATIENCE_S)
            worker.process.send_signal(signal.SIGTERM)
            (folder / "go").touch()
            assert worker.process.wait(_PATIENCE_S) == 0, worker.printed
            assert worker.handled() == ["slow began", "slow ended"]
            assert admin.get_group("billing").lag == 0, "it is acknowledged"
        finally:
            worker.close()


@pytest.mark.long
def test_cons_14_handlers_start_again_when_their_files_change(service: Up, folder: Path) -> None:
    with Producer(service.url) as producer:
        worker = Worker(folder, service.url, "app:book", "--reload")
        try:
            producer.send("orders", '{"id": 1}')
            until(lambda: worker.handled() == ["book 1"], _PATIENCE_S)
            (folder / "app.py").write_text("this is no Python")
            until(lambda: "SyntaxError" in worker.printed, _PATIENCE_S)
            (folder / "app.py").write_text(MODULE.replace('"book ', '"again '))
            producer.send("orders", '{"id": 2}')
            until(lambda: worker.handled() == ["book 1", "again 2"], _PATIENCE_S)
            worker.process.send_signal(signal.SIGINT)
            assert worker.process.wait(_PATIENCE_S) == 0, worker.printed
        finally:
            worker.close()


@pytest.mark.parametrize(
    ("argument", "said"),
    [("nothing", "there is no module nothing in"), ("app:none", "has no handler none; it has"), ("os", "no handlers")],
)
def test_what_cannot_be_run_is_said_in_a_line(folder: Path, argument: str, said: str) -> None:
    command = [sys.executable, "-m", "deltamq.mq.client.cli", "worker", argument]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 1 and said in done.stderr and len(done.stderr.splitlines()) == 1
