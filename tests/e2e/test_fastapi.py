"""FastAPI with a producer and a worker in its process, as the client's README has it, restarted under load."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deltamq import Admin, AsyncPullConsumer
from tests.e2e.main_job import ROOT
from tests.e2e.test_asyncio_clients import until
from tests.e2e.up_process import Up
from tests.free_ports import free_port

TASKS = 16
#: Messages that a killed app held come again after this time.
INVISIBLE_MS = 1_000


class Shop:
    """uvicorn with the app of the README, at one port; what it prints goes to a file."""

    def __init__(self, folder: Path, url: str) -> None:
        text = (ROOT / "mq" / "client" / "README.md").read_text(encoding="utf-8")
        example = re.search(r"^### FastAPI$.*?^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert example is not None and "http://127.0.0.1:8080" in example[1]
        (folder / "shop.py").write_text(example[1].replace("http://127.0.0.1:8080", url))
        self._folder = folder
        self._output = folder / "shop.log"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [sys.executable, "-u", "-m", "uvicorn", "shop:app", "--port", str(self._port)]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT)

    def end(self, number: signal.Signals) -> int:
        """End the process by this signal; returns its status."""
        self._process.send_signal(number)
        return self._process.wait(60)

    @property
    def printed(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def billed(self) -> set[int]:
        return {int(number) for number in re.findall(r"^billed (\d+)$", self.printed, re.MULTILINE)}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "warehouse", "--port", "0")
    yield made
    made.close()


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param((signal.SIGTERM,), id="stopped"),
        pytest.param((signal.SIGTERM, signal.SIGKILL), marks=pytest.mark.long, id="stopped and killed"),
    ],
)
def test_an_app_with_a_worker_is_started_again_under_load_and_loses_nothing(
    service: Up, tmp_path: Path, ends: tuple[signal.Signals, ...]
) -> None:
    with Admin(service.url) as admin:
        admin.create_topic("orders", partitions=2)
        admin.create_group("billing", invisible_ms=INVISIBLE_MS, retry_policy=[100])
    shop = Shop(tmp_path, service.url)
    shop.start()
    ordered: set[int] = set()
    numbers = iter(range(1_000_000))
    over = asyncio.Event()

    async def place_orders(client: httpx.AsyncClient) -> None:
        while not over.is_set():
            number = next(numbers)
            try:
                answer = await client.post(f"{shop.url}/orders/{number}")
            except httpx.TransportError:
                await asyncio.sleep(0.02)  # the app is away: this order is not known to be placed
                continue
            assert answer.status_code == 201, answer.text
            ordered.add(number)

    async def main() -> list[int]:
        async with httpx.AsyncClient(timeout=30) as client, asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(place_orders(client))
            for number in ends:
                enough = len(ordered) + 100
                await until(lambda: len(ordered) >= enough)  # noqa: B023  # awaited here
                status = await asyncio.to_thread(shop.end, number)
                assert status == -number, shop.printed
                shop.start()
            enough = len(ordered) + 100
            await until(lambda: len(ordered) >= enough)
            over.set()
        async with AsyncPullConsumer(service.url, "orders") as reader:
            offsets = await reader.end_offsets()
            stored: list[int] = []
            while reader.positions() != offsets:
                stored += [int(message.body) for message in await reader.poll(wait_ms=500)]
        await until(lambda: shop.billed == set(stored))
        return stored

    try:
        stored = asyncio.run(main())
        assert shop.end(signal.SIGTERM) == -signal.SIGTERM
    finally:
        shop.end(signal.SIGKILL)
    assert len(stored) == len(set(stored)) and ordered <= set(stored)
    assert (
        shop.printed.count("Application shutdown complete.") == ends.count(signal.SIGTERM) + 1
        and "Traceback" not in shop.printed
    )
