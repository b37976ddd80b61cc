"""A warehouse on each object store: services that restart and take over, groups, jobs, and a Delta reader (RELY-16).

Processes find their store by the environment that every tool of its cloud reads.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import deltalake
import pytest

from deltamq import Admin, PopClient, Producer, PullConsumer
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import PoppedMessage
from tests.contract.stores import OBJECT_STORES
from tests.e2e.main_job import ROOT
from tests.e2e.service_process import CLI, ServiceProcess
from tests.e2e.test_two_brokers import until
from tests.faults.job_process import JobProcess
from tests.forked import run_forked
from tests.free_ports import free_port
from tests.object_servers import SERVERS, ObjectServer, gcs_server, running

# The first run builds the servers.
pytestmark = pytest.mark.timeout(900)

#: A lease of another process is waited for.
PATIENCE = Patience(retries=60, first_wait_ms=100.0, timeout_s=30.0)
_SETTINGS = {
    # acknowledgements are stored before they are answered: a kill forgets none
    "DELTAMQ_QUEUE_MEMORY_MATCH": "false",
    "DELTAMQ_SERVICE_LEASE_MS": "3000",
    "DELTAMQ_SERVICE_LEASE_RENEW_MS": "700",
    "DELTAMQ_SERVICE_LEASE_MARGIN_MS": "500",
    "DELTAMQ_QUEUE_INVISIBLE_MS_MIN": "100",
}
Serve = Callable[[str], ServiceProcess]


@pytest.fixture(scope="module", params=OBJECT_STORES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with running(SERVERS[request.param], tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture
def serve(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a process for a broker, on a warehouse of the test."""
    for name, value in {**server.environment(), **_SETTINGS}.items():
        monkeypatch.setenv(name, value)
    started: list[ServiceProcess] = []

    def start(broker: str) -> ServiceProcess:
        (tmp_path / broker).mkdir()
        flags = ("--warehouse", server.uri(tmp_path.name), "--broker", broker)
        started.append(ServiceProcess(tmp_path / broker / "log", *flags))
        return started[-1]

    yield start
    for process in started:
        process.close()


def _bodies(url: str) -> list[str]:
    """Return all messages, as a consumer fetches them."""
    with PullConsumer(url, "orders", start="first", patience=PATIENCE) as consumer:
        bodies: list[str] = []
        while messages := consumer.poll(wait_ms=500):
            bodies += [message.text for message in messages]
    return sorted(bodies)


def _numbers(low: int, high: int) -> list[str]:
    return [f"{number:02d}" for number in range(low, high)]


def _send(url: str, low: int, high: int) -> None:
    with Producer(url, retries=60, first_wait_ms=100.0) as producer:
        for text in _numbers(low, high):
            producer.send("orders", text, key=f"key-{int(text) % 5}")


@pytest.mark.long
def test_rely_16_a_service_is_restarted_and_taken_over_and_loses_nothing(
    server: ObjectServer, serve: Serve, tmp_path: Path
) -> None:
    one = serve("broker-a")
    with Admin(one.url, patience=PATIENCE) as admin:
        admin.create_topic("orders", partitions=2)
        admin.create_group("billing", max_attempts=3, retry_policy={"fixed_ms": 100})
    _send(one.url, 0, 20)
    with PopClient(one.url, "billing", patience=PATIENCE) as billing:
        first, *others = billing.pop("orders", 20, invisible_ms=60_000).messages
        assert billing.ack([message.handle for message in others]) == []
        assert billing.nack([first.handle]) == []
    one.kill()
    one.start()
    assert _bodies(one.url) == _numbers(0, 20)

    two = serve("broker-b")
    one.kill()
    _send(two.url, 20, 30)
    assert _bodies(two.url) == _numbers(0, 30)
    jobs = JobProcess(server.uri(tmp_path.name), "revive", "delay", "retain", every_s=0.2)
    popped = {message.text: message.delivery_attempt for message in _popped(two.url, {*_numbers(20, 30), first.text})}
    assert jobs.stop() == 0
    assert popped[first.text] == 2 and len(popped) == 31 - len(others) - 1

    with Admin(two.url, patience=PATIENCE) as admin:
        locations = [partition.location for partition in admin.get_topic("orders").partitions]
    tables = [deltalake.DeltaTable(location, storage_options=server.reader_options()) for location in locations]
    bodies = [body for table in tables for body in table.to_pyarrow_table().column("body").to_pylist()]
    assert sorted(body.decode() for body in bodies) == _numbers(0, 30)


def _popped(url: str, wanted: set[str]) -> list[PoppedMessage]:
    """Return what a group still gets, when all that is wanted has come."""
    popped: list[PoppedMessage] = []
    with PopClient(url, "billing", patience=PATIENCE) as billing:

        def have_come() -> bool:
            messages = billing.pop("orders", wait_ms=500).messages
            assert billing.ack([message.handle for message in messages]) == []
            popped.extend(messages)
            return wanted <= {message.text for message in popped}

        until(have_come, within_s=60)
    return popped


def test_look_22_the_calls_of_a_service_and_their_price(server: ObjectServer, serve: Serve) -> None:
    service = serve("broker-a")
    _send(service.url, 0, 5)
    cost = json.loads(run_forked(CLI, "cost", "--url", service.url, "--json").stdout)
    calls = {one["operation"]: one["requests"] for one in cost["operations"]}
    assert calls["put"] >= 5 and calls["put_if_absent"] >= 5 and calls["get"] > 0 and calls["list"] > 0
    assert cost["dollars_a_month"] > 0 and cost["dollars_a_gib"] > 0
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    assert 'deltamq_store_requests_total{operation="put_if_absent"}' in metrics
    assert 'deltamq_store_bytes_total{operation="put"}' in metrics


def test_look_23_doctor_measures_a_store_and_says_what_a_commit_takes_and_costs(
    server: ObjectServer, serve: Serve, tmp_path: Path
) -> None:
    service = serve("broker-a")
    uri = server.uri(tmp_path.name)
    done = run_forked(CLI, "doctor", "--url", service.url, "--warehouse", uri, "--json")
    details = [check["detail"] for check in json.loads(done.stdout)["checks"] if check["name"] == "store"]
    holds, times, commit = details
    assert holds == f"{uri} puts if absent: of two writers exactly one wins"
    assert re.search(r"of \d+ calls each: PUT \d+ and \d+ ms, conditional PUT .*, GET .*, LIST \d+ and \d+ ms$", times)
    assert re.search(r"a PUT and then a conditional PUT: \d+ and \d+ ms; a million commits cost \$1\d\.\d\d", commit)
    assert [name for name in server.store(tmp_path.name).folders("") if "probe" in name] == []


_PAGE: Final = (ROOT / "tables" / "store" / "README.md").read_text("utf-8")
_HEADINGS: Final = {"s3": "S3", "az": "Azure", "gs": "Google Cloud Storage"}


def _typed(heading: str) -> str:
    """Return what the page tells people to type under a heading."""
    (text,) = re.findall(rf"^##+ {heading}\n.*?^```bash\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)[:1]
    return str(text)


@pytest.mark.long
def test_rely_16_what_the_page_tells_people_to_type_works(server: ObjectServer, tmp_path: Path) -> None:
    scheme = server.uri("").partition(":")[0]
    exported = _typed(_HEADINGS[scheme])
    variables = dict(re.findall(r"(\w+)=(\S+)", exported))
    assert variables.pop("DELTAMQ_WAREHOUSE_URI") == server.uri("mq")
    here = server.environment()
    assert variables.keys() <= here.keys(), "the page names variables that the store's client reads"
    port = free_port()
    commands = _typed("What to type").replace("8080", str(port))
    script = f'{exported}{_exports(here)}export DELTAMQ_URL=http://127.0.0.1:{port}\ntrap "kill 0" EXIT\n{commands}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
        check=False,
    )
    assert '{\\"amount\\": 12.5}' in done.stdout or '{"amount": 12.5}' in done.stdout, done.stdout + done.stderr
    assert "a million commits cost $" in done.stdout and "for each GiB put so far" in done.stdout


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


@pytest.mark.long
def test_rely_3_a_store_without_conditional_put_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(partial(gcs_server, overwrites=True), tmp_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ChildProcessError, match=f"{server.uri('refused')}.* overwrites files"):
            ServiceProcess(tmp_path / "log", "--warehouse", server.uri("refused"))
