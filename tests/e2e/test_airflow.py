"""Airflow's message-queue trigger, with the real Airflow in an environment of its own (README "Airflow")."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq import Admin, PopClient, Producer
from deltamq.jobs.setup.wheel import build
from tests.api.running import until
from tests.e2e.up_process import Up

HERE = Path(__file__).parent
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
_PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with Airflow, the provider for messages, and our wheel with its extra."""
    folder = tmp_path_factory.mktemp("airflow")
    wheel, *_ = build(folder / "dist")
    python, uv = folder / "venv" / "bin" / "python", Path(sys.executable).with_name("uv")
    pins = ("--constraint", str(HERE / "airflow_pins.txt"))
    for command in (
        ["venv", "--quiet", "--python", sys.executable, str(folder / "venv")],
        ["pip", "install", "--quiet", "--system-certs", "--python", str(python), *pins, f"{wheel}[airflow]"],
    ):
        done = subprocess.run([uv, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return python


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "w", "--port", "0")
    yield made
    made.close()


def test_a_message_is_acknowledged_when_its_event_is_stored_and_comes_again_otherwise(
    airflow: Path, service: Up, tmp_path: Path
) -> None:
    with Admin(service.url) as admin, Producer(service.url) as producer:
        admin.create_topic("orders", partitions=1)
        admin.create_group("airflow", retry_policy=[1_000])
        environ = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "home")}
        command = [airflow, HERE / "airflow_program.py", service.url, "orders"]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            try:
                assert program.stdout.readline() == "listening\n"
                producer.send("orders", "paid", key="order-17", headers={"region": "eu"})
                producer.send("orders", b"\xff\x00", key="order-17")
                producer.send("orders", "shipped", key="order-17")
                until(lambda: _is_done(admin), _PATIENCE_S)
                producer.send("orders", "late")
                fired, ended = json.loads(program.stdout.readline())
            finally:
                program.kill()
        assert [event.get("body", event.get("body_base64")) for event in fired] == ["paid", "/wA=", "shipped", "late"]
        assert (fired[0]["key"], fired[0]["headers"], fired[0]["offset"]) == ("order-17", {"region": "eu"}, 0)
        assert ended == ["AckTimeout", "AckTimeout"]
        with PopClient(service.url, "airflow") as client:
            messages = []
            until(lambda: bool(messages.extend(client.pop("orders", wait_ms=1_000).messages) or messages), _PATIENCE_S)
        assert [(message.text, message.delivery_attempt) for message in messages] == [("late", 2)]


def _is_done(admin: Admin) -> bool:
    """Return whether the group has acknowledged three messages, and holds none."""
    lanes = [lane for topic in admin.get_group("airflow").topics for lane in topic.partitions]
    return any(lane.committed_offset == 3 for lane in lanes) and not any(lane.lag or lane.in_flight for lane in lanes)
