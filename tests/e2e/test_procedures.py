"""The procedures of OPERATIONS.md, typed as they stand there, on a service and jobs that are at work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest

from deltamq import Admin, DeltaMQError, PopClient, Producer
from tests.api.running import until
from tests.e2e.main_job import ROOT
from tests.e2e.service_process import ServiceProcess
from tests.e2e.up_process import Up
from tests.store_proxy import Fault, StoreProxy

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
        self.folder = folder
        self.warehouse = folder / "lib" / "warehouse"
        self.warehouse.parent.mkdir()
        #: The address of the tables, if they are not in the folder.
        self.uri: str | None = None
        self._up: Up | None = None
        self.url = "http://127.0.0.1:0"
        self.start()
        #: What happens to the machine while its processes are stopped, or where a disk is mounted.
        self.between: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start service and jobs, at the port that they had."""
        self._up = Up(
            self.warehouse, "--port", self.url.rpartition(":")[2], *(("--warehouse", self.uri) if self.uri else ())
        )
        self.url = self._up.url

    def kill(self) -> None:
        """Kill service and jobs, as when the machine is lost."""
        assert self._up is not None
        self._up.kill()
        self._up = None

    def follow(self, procedure: str, lines: Sequence[str] = ()) -> str:
        """Type a procedure, or these of its lines; return everything that it printed."""
        printed = []
        for line in lines or PROCEDURES[procedure]:
            if line.startswith("systemctl "):
                self._systemctl(line.split()[1])
            elif line.startswith("mount "):
                self.between()
            else:
                printed.append(self.type(line))
        return "\n".join(printed)

    def type(self, line: str) -> str:
        """Type one command, with this machine's folders and address; return what it printed."""
        for book, here in (
            ("/var/lib/deltamq", str(self.folder / "lib")),
            ("/mnt/backups", str(self.folder / "backups")),
            ("http://127.0.0.1:8080", self.url),
        ):
            line = line.replace(book, here)
        return typed(line, self.url, self.uri or self.warehouse)

    def _systemctl(self, act: str) -> None:
        if act in ("stop", "restart") and self._up is not None:
            self._up.close()
            self._up = None
            self.between()
        if act in ("start", "restart"):
            self.start()

    def close(self) -> None:
        if self._up is not None:
            self._up.close()


def typed(line: str, url: str, warehouse: Path | str, more: Mapping[str, str] = {}) -> str:  # never changed
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


@pytest.fixture
def store(proxied_store: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """An object store that this process and those that it starts can reach."""
    for name, value in proxied_store.environment().items():
        monkeypatch.setenv(name, value)
    yield proxied_store
    proxied_store.set_faults()


def left(machine: Machine, count: int = 10) -> list[str]:
    """Return what the group gets now, this many messages at least, in order."""
    bodies: list[str] = []
    with PopClient(machine.url, "billing") as consumer:

        def all_came() -> bool:
            bodies.extend(message.text for message in consumer.pop("orders", max_messages=32, wait_ms=500).messages)
            return len(bodies) >= count

        until(all_came)
    return bodies


@pytest.mark.long
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


@pytest.mark.long
def test_a_point_in_time_and_an_upgrade(machine: Machine) -> None:
    assert "10  come again" in machine.follow("Go back to a point in time")
    upgraded = machine.follow("Upgrade and roll back")
    assert "everything before" in upgraded
    assert len(left(machine)) >= 10


@pytest.mark.long
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
    with Admin(machine.url) as admin:
        until(lambda: admin.count_dead_letters("billing").new == 1)  # a job brings it there
    assert "cannot be booked" in machine.follow("Stop a group whose handler fails, and send its messages back")
    assert message.text in left(machine)


@pytest.mark.long
def test_one_persons_data_is_erased(machine: Machine) -> None:
    with Producer(machine.url) as producer:
        producer.send("orders", "SECRET of Ada", key="ada@example.org")
    ask, look = PROCEDURES["Erase one person's data"]
    asked = re.search("erasure ([0-9a-f]{32}): waiting", machine.type(ask))
    assert asked is not None
    # The jobs look for requests every minute.
    until(lambda: "erased, 1 messages of 1 keys" in machine.type(look.replace("ID", asked[1])), within_s=90)
    with Admin(machine.url) as admin:
        paths = [f"partitions/{info.partition}/messages?offset=0" for info in admin.get_topic("orders").partitions]

    def fetched() -> bytes:
        return b"".join(urlopen(f"{machine.url}/v1/topics/orders/{path}").read() for path in paths)

    until(lambda: b"SECRET" not in fetched())
    bodies = left(machine, 11)
    assert sorted(bodies) == ["", *(str(number) for number in range(10, 20))], "it keeps its place"


def ready(url: str) -> bool:
    with Admin(url) as admin:
        return admin.unready() is None


@pytest.mark.long
def test_rely_10_a_disk_that_is_not_mounted_is_named_and_the_processes_go_on_when_it_is(machine: Machine) -> None:
    disk = machine.warehouse.parent
    disk.rename(machine.folder / "not mounted")
    disk.mkdir()
    until(lambda: not ready(machine.url), within_s=120)
    with pytest.raises(DeltaMQError, match="store_gone"), Producer(machine.url, timeout_s=2.0) as producer:
        producer.send("orders", "while it is gone")
    assert list(disk.iterdir()) == []

    def mount() -> None:
        disk.rmdir()
        (machine.folder / "not mounted").rename(disk)
        until(lambda: ready(machine.url))

    machine.between = mount
    printed = machine.follow("When the store is gone")
    assert "is not there: is the warehouse's disk mounted?" in printed
    assert f"serves warehouse {machine.warehouse}" in printed and "0 damages found" in printed
    log = machine.warehouse.with_name("up.log").read_text()
    assert log.count("event=lease_tick_failed code=store_gone") == 1 and "event=lease_tick_works_again" in log
    assert len(left(machine)) == 10


@pytest.mark.long  # an object store is tried for seconds before each answer
def test_an_object_store_that_is_gone_is_named_and_the_processes_go_on_when_it_is_back(
    machine: Machine, store: StoreProxy, tmp_path: Path
) -> None:
    machine.close()
    machine.uri = store.uri(tmp_path.name)
    machine.start()
    with Producer(machine.url) as producer:
        producer.send_batch("orders", [f"{number}" for number in range(20)])
        store.set_faults(Fault(reset=True))
        until(lambda: not ready(machine.url), 60)
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(producer.send, "orders", "while it is gone")

            def back() -> None:
                store.set_faults()
                until(lambda: ready(machine.url), 60)

            machine.between = back
            printed = machine.follow("When the store is gone")
            assert waits.result(60).durable
    assert "the metadata was not read for" in printed and "0 damages found" in printed
    with Admin(machine.url) as admin:
        assert admin.get_topic("orders").messages == 21
    machine.close()  # while the store is there


@pytest.mark.long  # an export is a job of Spark, which starts twice
@pytest.mark.timeout(600)
def test_a_job_that_fails_says_why_and_goes_on_when_that_is_mended(machine: Machine) -> None:
    lake = machine.folder / "lake"
    lake.write_text("a file where the table's folder should be")
    table = f"--topic orders --to {lake}/orders --schema 'n BIGINT'"
    machine.type(f"deltamq jobs export add {table} --warehouse {machine.warehouse}")
    run = f"! deltamq jobs run export --once --engine local --warehouse {machine.warehouse}"
    # It is refused while the machine's own jobs run the export.
    until(lambda: f"Parent path is not a directory: file:{lake}" in machine.type(run), within_s=240)
    machine.between = lake.unlink
    before, _, after = machine.follow("When a job fails").partition("job=export ok")
    assert "FAILED" in before and f"Parent path is not a directory: file:{lake}" in before
    assert "quarantined=20" in after and "FAILED" not in after


@pytest.mark.long
def test_a_group_whose_lag_grows_is_looked_at_and_helped(machine: Machine) -> None:
    with Admin(machine.url) as admin:
        until(lambda: admin.history("lag", group="billing"))
        printed = machine.follow("When the lag of a group grows")
        assert len(admin.get_topic("orders").partitions) == 4
    # how far behind it is, what its clients did, how it was, what a reset would leave out
    for part in ("lag 10", "100.0", "▁", "5 passed over"):
        assert part in " ".join(printed.split()), printed
    assert len(left(machine, 5)) == 5


@pytest.mark.long  # the server is built with Go when it is first needed
def test_another_region_serves_what_was_in_the_last_backup(machine: Machine, store: StoreProxy, tmp_path: Path) -> None:
    here, *there = (
        line.replace("s3://backups", store.uri(f"{tmp_path.name}-backups")).replace(
            "s3://warehouse/deltamq", store.uri(tmp_path.name)
        )
        for line in PROCEDURES["Another region"]
    )
    assert "20 messages" in machine.type(here)
    with Producer(machine.url) as producer:
        producer.send("orders", "after the backup")
    machine.kill()
    shutil.rmtree(machine.warehouse)
    machine.uri = store.uri(tmp_path.name)
    machine.url = "http://127.0.0.1:0"
    printed = machine.follow("Another region", there)
    assert f"serves warehouse {machine.uri}" in printed
    assert len(left(machine)) == 10
    with Admin(machine.url) as admin:
        assert admin.get_topic("orders").messages == 20
    machine.close()  # while the store is there


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
