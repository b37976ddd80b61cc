"""A real Prometheus, as Debian has it, with conf/monitoring: it scrapes a service under load and jobs (LOOK-12)."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from deltamq.api.kafka.messages.log_messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from deltamq.api.ports import REAL
from deltamq.jobs.run.meters import Meters, serving
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.job_runs import LastRun
from tests.api.kafka.raw_client import RawClient
from tests.api.queue_calls import Consumer
from tests.api.running import Api, config_for, running
from tests.certificates import Authority
from tests.free_ports import free_port
from tests.monitoring import FOLDER, alerts, panels
from tests.queue_engines import revive_job
from tests.s3_server import ServerUnavailable, s3_server

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="prometheus and promtool are not installed (apt-get install prometheus)",
    ),
]

_WITHIN_S = 120.0
#: What Grafana puts in for the dashboard's variables.
_VARIABLES = {"$__rate_interval": "30s", "$instance": ".*", "$topic": ".*", "$group": ".*"}


def _promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_look_12_promtool_takes_the_configuration_and_fires_each_rule() -> None:
    assert f"{len(alerts())} rules found" in _promtool("check", "rules", "alerts.yml")
    assert "is valid" in _promtool("check", "config", "prometheus.yml")
    assert "SUCCESS" in _promtool("test", "rules", "alerts_test.yml")


class _Load:
    """Messages, groups, Kafka's calls and runs of jobs, a few at each `go_on`."""

    def __init__(self, api: Api, config: Config, meters: Meters) -> None:
        self._api = api
        self._config = config
        self._meters = meters
        self._billing = Consumer(api, "billing", "orders")
        api.put_topic("orders", partitions=2)

    def go_on(self) -> None:
        """Send, deliver, acknowledge, fail and reject some messages; let the jobs do their part."""
        self._api.send("orders", *["x" * 100] * 6)
        self._api.send("orders", {"body": "later", "delay_ms": 3_600_000})
        popped = self._billing.pop(5, client_id="worker-1", wait_ms=100).handles
        self._billing.ack(popped[:1])
        self._billing.nack(popped[1:2], delay_ms=0)
        self._billing.dead(popped[2:3])
        for name in self._api.partitions("orders"):
            assert self._api.fetch("orders", name).status == 200
        assert self._api.call("POST", "/v1/groups/billing/ack", {"handles": "none"}).status == 400
        with RawClient(self._config.service.kafka_port, self._api.ca) as kafka:
            kafka.ask(
                ListOffsetsRequest(topics=[ListOffsetsTopic("nowhere", [ListOffsetsPartition(index=0, timestamp=-1)])])
            )
        self._run_job()

    def _run_job(self) -> None:
        started = datetime.now(UTC)
        with contextlib.closing(Warehouse.open(self._config.warehouse.uri)) as warehouse:
            facts = revive_job("local", warehouse, self._config).run(time.time_ns() // 1_000_000 + 60_000)
        facts = {"rows": 1, "behind_ms": 0, **facts}
        self._meters.ran(
            LastRun(job="revive", started_at=started, seconds=0.1, ok=True, detail="", facts=facts, shards=("a",))
        )


class _Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return len(self.query("up == 1")) == 2
        return False

    def query(self, query: str) -> list[Any]:
        """Return the series; raises if Prometheus does not take the query."""
        result: list[Any] = self._get("query", query=query)["result"]
        return result

    def rules(self) -> dict[str, Any]:
        return {rule["name"]: rule for group in self._get("rules")["groups"] for rule in group["rules"]}

    def _get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(query)}", timeout=20) as reply:
            return json.load(reply)["data"]


@contextlib.contextmanager
def _prometheus(folder: Path, service: int, jobs: int, ca: str) -> Iterator[_Prometheus]:
    """Run Prometheus with the configuration of conf/monitoring, faster, and with these targets."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    of_service, of_jobs = config["scrape_configs"]
    of_service |= {"scheme": "https", "tls_config": {"ca_file": ca}}
    for scrape, port in ((of_service, service), (of_jobs, jobs)):
        scrape["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
    port = free_port()
    arguments = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", *arguments, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        yield _Prometheus(port)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def warehouse(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a warehouse, on a disk or on S3."""
    if request.param == "disk":
        yield str(tmp_path / "warehouse")
        return
    try:
        with s3_server(tmp_path / "s3") as server:
            for name, value in server.environment().items():
                monkeypatch.setenv(name, value)
            yield server.uri("monitored")
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("warehouse", "absent"), [("disk", "deltamq_store_"), ("s3", "deltamq_disk_")], indirect=["warehouse"]
)
def test_look_12_a_real_prometheus_has_a_series_for_each_panel_and_evaluates_each_rule(
    tmp_path: Path, warehouse: str, absent: str
) -> None:
    """Some panels are about a disk, some about the calls of a store; a warehouse has one of the two."""
    authority = Authority(tmp_path / "tls")
    pair = authority.server()
    config = config_for(warehouse, kafka_port=free_port(), tls_cert=pair.cert, tls_key=pair.key)
    meters = Meters(["revive"])
    with (
        running(config, REAL) as found,
        serving(meters, "127.0.0.1", 0) as jobs,
        _prometheus(tmp_path, found.port, jobs, authority.ca) as prometheus,
    ):
        load = _Load(Api(found.port, found.service, ca=authority.ca), config, meters)
        all_panels = {panel for panel in panels() if not panel.title.startswith("$") and absent not in panel.query}
        open_panels = all_panels
        fires = "DeltaMQCertificateEnds"  # the authority signs for a day
        deadline = time.monotonic() + _WITHIN_S
        rules: dict[str, Any] = {}
        while open_panels or rules.get(fires, {}).get("state") != "firing":
            assert time.monotonic() < deadline, f"no series: {sorted(open_panels)}; {rules.get(fires)}"
            load.go_on()
            if prometheus.is_ready():
                open_panels = {one for one in open_panels if not prometheus.query(_filled(one.query))}
                rules = prometheus.rules()
        for name, rule in alerts().items():
            prometheus.query(rule["expr"])
            assert rules[name]["health"] in ("ok", "unknown"), rules[name]
        print(f"{len(all_panels)} queries of panels have series; {len(rules)} rules are evaluated")


def _filled(query: str) -> str:
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    return query
