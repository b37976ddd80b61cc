"""The procedures of OPERATIONS.md, typed as they stand there, on a service and jobs that are at work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from deltamq import Admin, PopClient, Producer
from tests.api.running import until
from tests.e2e.main_job import ROOT
from tests.e2e.service_process import ServiceProcess
from tests.e2e.up_process import Up

BOOK = (ROOT / "OPERATIONS.md").read_text(encoding="utf-8").partition("\n## Procedures\n")[2]
#: The commands of each procedure, by its heading.
PROCEDURES = {
    section.partition("\n")[0]: commands[1].splitlines()
    for section in BOOK.split("\n### ")[1:]
    if (commands := re.search(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
}


class Machine:
    """A machine with the folders of the book, on which `systemctl` starts and stops service and jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.warehouse = folder / "lib" / "warehouse"
        self.warehouse.parent.mkdir()
        self._up: Up | None = Up(self.warehouse, "--port", "0")
        self.url = self._up.url
        self.between: Callable[[], None] = lambda: None

    def follow(self, procedure: str) -> str:
        """Type a procedure; return everything that it printed."""
        printed = []
        for line in PROCEDURES[procedure]:
            if line.startswith("systemctl "):
                self._systemctl(line.split()[1])
                continue
            line = line.replace("/var/lib/deltamq", str(self._folder / "lib"))
            printed.append(typed(line.replace("/mnt/backups", str(self._folder / "backups")), self.url, self.warehouse))
        return "\n".join(printed)

    def _systemctl(self, act: str) -> None:
        if act in ("stop", "restart") and self._up is not None:
            self._up.close()
            self._up = None
            self.between()
        if act in ("start", "restart"):
            self._up = Up(self.warehouse, "--port", self.url.rpartition(":")[2])
            self.url = self._up.url

    def close(self) -> None:
        if self._up is not None:
            self._up.close()


def typed(line: str, url: str, warehouse: Path, more: Mapping[str, str] = {}) -> str:  # never changed
    """Run one command of a shell; it must succeed."""
    folder = str(Path(sys.executable).parent)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "DELTAMQ_URL": url, **more}
    environ["DELTAMQ_WAREHOUSE_URI"] = str(warehouse)
    done = subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    with Producer(made.url) as producer, PopClient(made.url, "billing") as consumer:
        producer.send_batch("orders", [f"{number}" for number in range(20)])
        consumer.ack([message.handle for message in consumer.pop("orders", max_messages=10, wait_ms=5_000).messages])
    yield made
    made.close()


def left(machine: Machine) -> list[str]:
    """Return what the group gets now, in order."""
    bodies: list[str] = []
    with PopClient(machine.url, "billing") as consumer:

        def all_came() -> bool:
            bodies.extend(message.text for message in consumer.pop("orders", max_messages=32, wait_ms=500).messages)
            return len(bodies) >= 10

        until(all_came)
    return bodies


def test_backup_and_restore(machine: Machine) -> None:
    made = machine.follow("Make backups")
    assert "20 messages" in made and "0 damages found" in made and "0 backups removed" in made
    with Producer(machine.url) as producer:
        producer.send("orders", "after the backup")
    restored = machine.follow("Restore")
    assert "0 damages found" in restored
    assert len(left(machine)) == 10
    with Admin(machine.url) as admin:
        assert admin.get_topic("orders").messages == 20


def test_a_point_in_time_and_an_upgrade(machine: Machine) -> None:
    assert "10  come again" in machine.follow("Go back to a point in time")
    upgraded = machine.follow("Upgrade and roll back")
    assert "everything before" in upgraded
    assert len(left(machine)) >= 10


def test_a_full_disk_and_a_damaged_partition(machine: Machine) -> None:
    assert "orders" in machine.follow("Make room on a disk")

    def damage() -> None:
        (log, *_) = sorted((machine.warehouse / "topics" / "orders").glob("*/_delta_log"))
        max(log.glob("*.json")).unlink()

    machine.between = damage
    machine.follow("Mend a damaged partition")
    assert len(left(machine)) == 10


def test_a_group_is_stopped_and_its_dead_letters_come_again(machine: Machine) -> None:
    with PopClient(machine.url, "billing") as consumer:
        (message,) = consumer.pop("orders", max_messages=1, wait_ms=5_000).messages
        consumer.dead([message.handle], "cannot be booked")
    assert "cannot be booked" in machine.follow("Stop a group whose handler fails, and send its messages back")
    assert message.text in left(machine)


def test_a_machine_is_drained_and_another_serves_what_it_had(tmp_path: Path) -> None:
    procedure = "Drain a machine, remove a process"
    pair = [ServiceProcess(tmp_path / "w", "--broker", name) for name in ("broker-a", "broker-b")]
    try:
        with Admin(pair[0].url) as admin, Producer(pair[0].url) as producer:
            until(lambda: [broker.online for broker in admin.cluster().brokers] == [True, True])
            admin.create_topic("orders", partitions=2)
            admin.create_static_topic("bookings", 4)
            sent = producer.send_batch("orders", [str(number) for number in range(20)])
            for line in PROCEDURES[procedure]:
                if line.startswith("systemctl stop"):
                    assert pair[1].stop() == 0
                    until(lambda: {broker.address for broker in admin.cluster().brokers} == {pair[0].url})
                else:
                    typed(line, pair[0].url, tmp_path / "w")
            assert producer.send("orders", "more", partition="orders@broker-b").offset == len(
                [one for one in sent if one.partition == "orders@broker-b"]
            )
    finally:
        for process in pair:
            process.close()


def test_keys_are_changed_while_both_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAMQ_SERVICE_AUTH", "true")
    keys = typed(f"deltamq auth init --warehouse {tmp_path}/w --json", "", tmp_path / "w")
    token = {"DELTAMQ_CLIENT_TOKEN": json.loads(keys)["key"]}
    service = ServiceProcess(tmp_path / "w")
    try:
        for line in ("principal create reports", "acl add reports --resource topic --pattern orders --verb subscribe"):
            typed(f"deltamq auth {line}", service.url, tmp_path / "w", token)
        old = json.loads(typed("deltamq auth key create reports --json", service.url, tmp_path / "w", token))["key"]
        *_, printed = [
            typed(line, service.url, tmp_path / "w", token) for line in PROCEDURES["Change keys and certificates"]
        ]
        (new,) = re.findall(r"mqk_\S+", printed)
        assert new != old
        for key in (old, new):
            with Admin(service.url, token=key) as admin:
                assert admin.list_topics() == []
    finally:
        service.close()


def test_every_procedure_of_the_book_is_typed_here() -> None:
    typed_here = re.findall(r'"([A-Z][^"]+)"', Path(__file__).read_text(encoding="utf-8"))
    assert [name for name in PROCEDURES if name not in typed_here] == []
