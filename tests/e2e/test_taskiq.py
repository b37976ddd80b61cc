"""Tasks of taskiq as messages, run by taskiq's own receiver and worker (README "taskiq")."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from deltamq import Admin, DeltaMQBroker, Refused
from tests.api.running import until as wait_until
from tests.e2e.main_job import ROOT
from tests.e2e.test_asyncio_clients import settled, until
from tests.e2e.up_process import Up

_PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("taskiq") / "warehouse", "--port", "0")
    yield made
    made.close()


def test_tasks_run_once_and_those_that_a_worker_leaves_come_again_at_once(service: Up) -> None:
    broker = DeltaMQBroker(service.url, "tasks", "workers")
    ran: list[int] = []
    stuck = asyncio.Event()

    @broker.task(task_name="note")
    async def note(number: int) -> None:
        ran.append(number)
        if number == 1_000 and not stuck.is_set():
            stuck.set()
            await asyncio.Event().wait()

    async def worked(worker: DeltaMQBroker, over: asyncio.Event) -> None:
        receiver = Receiver(worker, max_async_tasks=20, wait_tasks_timeout=0.05)
        await receiver.listen(over)
        await worker.shutdown()

    async def main() -> None:
        with pytest.raises(SendTaskError) as refused:
            await note.kiq(0)
        assert isinstance(refused.value.__cause__, Refused) and refused.value.__cause__.code == "not_started"
        await broker.startup()
        await asyncio.gather(*(note.kiq(number) for number in range(200)))
        await note.kicker().with_labels(delay=1.0).kiq(500)
        for again in range(2):
            over = asyncio.Event()
            working = asyncio.create_task(worked(broker, over))
            if again:
                await until(lambda: ran.count(1_000) == 2)
                await settled(service.url, "workers")
            else:
                await until(lambda: len(ran) == 201)
                assert ran[-1] == 500
                await note.kiq(1_000)
                await stuck.wait()
            over.set()
            await working

    asyncio.run(main())
    assert sorted(ran) == [*range(200), 500, 1_000, 1_000]


APP = """
import os, pathlib

@broker.task(task_name="work")
async def work(number: int) -> None:
    with open(pathlib.Path(__file__).with_name("ran"), "a") as file:
        file.write(f"{number}\\n")
    if number == 0 and pathlib.Path(__file__).with_name("deadly").exists():
        os.kill(os.getpid(), 9)

async def kick():
    await broker.startup()
    await work.kiq(0)
    await broker.shutdown()
"""


def test_the_example_of_the_readme_runs_under_taskiqs_worker_and_what_kills_it_comes_again(
    service: Up, tmp_path: Path
) -> None:
    section = (ROOT / "mq" / "client" / "README.md").read_text(encoding="utf-8").partition("### taskiq\n")[2]
    example = re.search(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert example is not None and "http://127.0.0.1:8080" in example[1]
    (tmp_path / "app.py").write_text(example[1].replace("http://127.0.0.1:8080", service.url) + APP)
    (tmp_path / "deadly").touch()
    ran = tmp_path / "ran"
    with Admin(service.url) as admin:
        admin.create_group("taskiq", invisible_ms=1_000, retry_policy=[100])
    kick = "import asyncio, app; asyncio.run(app.main()); asyncio.run(app.kick())"
    subprocess.run([sys.executable, "-c", kick], cwd=tmp_path, check=True, timeout=_PATIENCE_S)
    command = [sys.executable, "-m", "taskiq", "worker", "app:broker", "--workers", "1"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: ran.exists() and ran.read_text() == "0\n", _PATIENCE_S)
        (tmp_path / "deadly").unlink()
        wait_until(lambda: ran.read_text().startswith("0\n0\n"), _PATIENCE_S)
        wait_until(lambda: "billed 17" in (tmp_path / "log").read_text(), _PATIENCE_S)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(_PATIENCE_S) == 0, (tmp_path / "log").read_text()
    finally:
        worker.kill()
        worker.wait()
