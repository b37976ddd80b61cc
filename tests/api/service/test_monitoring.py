"""conf/monitoring against a real service and jobs: each metric that a rule or a panel names is there (SPEC LOOK-12)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deltamq.api.service.store_meter import StoreMeter
from deltamq.jobs.run.meters import Meters
from deltamq.tables.ops.job_runs import LastRun
from deltamq.tables.store.call_counts import CallCounts
from tests.api.running import Api, config_for, running
from tests.certificates import Authority
from tests.free_ports import free_port
from tests.monitoring import FOLDER, alerts, metrics_in, panels

#: Metrics that Prometheus itself makes.
_OF_PROMETHEUS = {"up", "ALERTS"}
_QUERIES = [*panels(), *((name, rule["expr"]) for name, rule in alerts().items())]
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


def _names(text: str) -> set[str]:
    """Return the names of the samples that these families have, or will have."""
    families = list(text_string_to_metric_families(text))
    return {family.name + suffix for family in families for suffix in _SUFFIXES.get(family.type, ("",))}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """The metrics of a service with a Kafka port and TLS, of one on an object store, and of jobs."""
    folder = tmp_path_factory.mktemp("monitoring")
    authority = Authority(folder / "tls")
    pair = authority.server()
    config = config_for(folder / "warehouse", kafka_port=free_port(), tls_cert=pair.cert, tls_key=pair.key)
    meters = Meters(["revive"])
    meters.ran(
        LastRun(job="revive", started_at=datetime.now(UTC), seconds=0.1, ok=True, detail="", facts={}, shards=())
    )
    with running(config) as api:
        shown = Api(api.port, api.service, ca=authority.ca).call("GET", "/metrics").body.decode()
        of_store = {f"{family.name}_total" for family in StoreMeter(CallCounts(), "s3://bucket/prefix").families()}
        yield _names(shown) | _names(generate_latest(meters.registry).decode()) | of_store


@pytest.mark.parametrize(("title", "query"), _QUERIES, ids=[title for title, _ in _QUERIES])
def test_look_12_names_only_metrics_that_there_are(names: set[str], title: str, query: str) -> None:
    named = metrics_in(query)
    assert named and named - _OF_PROMETHEUS <= names


def test_look_12_finds_the_metrics_of_a_query() -> None:
    query = 'sum by (group) (rate(a_total{b=~"c(d)"}[5m])) / on (e) f > 1e3 and time() - g offset 1h unless (h) * 4'
    assert metrics_in(query) == {"a_total", "f", "g", "h"}
    assert metrics_in("histogram_quantile(0.99, sum by (le) (rate(i_bucket[$__rate_interval])))") == {"i_bucket"}


def test_look_12_each_rule_is_fired_by_a_test_that_has_a_series_for_which_it_does_not() -> None:
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text("utf-8"))["tests"]
    fired, quiet = set(), set()
    for test in tests:
        for one in test["alert_rule_test"]:
            if one["exp_alerts"]:
                fired.add(one["alertname"])
            if len(one["exp_alerts"]) < len(test["input_series"]):
                quiet.add(one["alertname"])
    assert fired == quiet == set(alerts())


def test_look_12_each_rule_says_how_bad_it_is_and_where_the_operators_book_has_it() -> None:
    book = (Path(__file__).parents[3] / "OPERATIONS.md").read_text("utf-8")
    sections = {_anchor(title): text for title, text in re.findall(r"^### (.+)\n((?:(?!#).*\n?)*)", book, re.M)}
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["summary"]
        document, _, section = rule["annotations"]["runbook"].partition("#")
        assert document == "OPERATIONS.md" and f"`{name}`" in sections[section], name


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
