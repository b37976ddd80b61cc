"""`deltamq cost`: calls of all processes, and their price (SPEC LOOK-22)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deltamq.jobs.cli.cost_command import cost_command
from tests.unit.client.stub_service import StubService

_MIB = 1 << 20


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService() as service:
        service.warehouse = "s3://warehouse/mq"
        service.store_use = use(put=(1_024, 1_024 * _MIB), put_if_absent=(1_024, 0), get=(10, 0))
        yield service


def use(seconds: float = 100.0, **calls: tuple[int, int]) -> dict[str, Any]:
    """Return what a process says of its calls, of which a half was made in the last 50 s."""
    operations = [{"operation": name, "requests": done[0], "bytes": done[1]} for name, done in calls.items()]
    recent = [{"operation": name, "requests": done[0] // 2, "bytes": done[1] // 2} for name, done in calls.items()]
    return {"seconds": seconds, "operations": operations, "recent_seconds": seconds / 2, "recent": recent}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cost_command, list(arguments))


def test_look_22_the_cost_of_a_service(stub: StubService) -> None:
    text = run("--url", stub.url).output
    assert "s3://warehouse/mq, 1 process: prices of s3-standard, https://" in text
    assert "$0.0102 for each GiB put so far" in text
    found = json.loads(run("--url", stub.url, "--json").output)
    put = next(one for one in found["operations"] if one["operation"] == "put")
    assert (put["requests"], put["bytes"], put["requests_per_s"]) == (1_024, 1_024 * _MIB, 10.24)
    assert put["dollars_a_month"] == pytest.approx(10.24 * 730 * 3_600 * 5 / 1e6, rel=1e-6)
    assert found["dollars_a_month"] == pytest.approx(sum(one["dollars_a_month"] for one in found["operations"]))
    assert found["dollars_a_gib"] == pytest.approx(0.01024, rel=1e-3)
    assert (found["prices"], found["day"][:2], found["not_asked"]) == ("s3-standard", "20", {})


def test_look_22_the_calls_of_all_processes_are_summed_and_who_is_not_counted_is_said(stub: StubService) -> None:
    with StubService() as other:
        other.warehouse, other.store_use = stub.warehouse, use(put=(76, 0), delete=(3, 0))
        hosts = [(stub.host_id, stub.url), (other.host_id, other.url), ("gone", "http://127.0.0.1:1")]
        stub.hosts = [{"host": id_, "address": address, "brokers": []} for id_, address in hosts]
        done = run("--url", stub.url, "--json")
    found = json.loads(done.output)
    assert {one["operation"]: one["requests"] for one in found["operations"]} == {
        "put": 1_100,
        "put_if_absent": 1_024,
        "get": 10,
        "head": 0,
        "list": 0,
        "delete": 3,
    }
    assert found["processes"] == [stub.host_id, other.host_id] and list(found["not_asked"]) == ["http://127.0.0.1:1"]


def test_look_22_another_price_list_and_calls_of_ones_own(stub: StubService) -> None:
    express = json.loads(run("--url", stub.url, "--prices", "s3-express", "--json").output)
    assert express["dollars_a_gib"] == pytest.approx((2_048 * 1.13 + 10 * 0.03) / 1e6 + 0.0032, rel=1e-3)
    month = json.loads(run("--calls", "put=1000000", "--calls", "get=1000000", "--gib", "100", "--json").output)
    assert month["dollars_a_month"] == pytest.approx(5.4)
    assert month["dollars_a_gib"] == pytest.approx(0.054)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--calls", "puts=3"), "--calls: give a kind (put, put_if_absent, get, head, list, delete)"),
        (("--calls", "put=-3"), "--calls: give a kind"),
        (
            ("--calls", "put=3", "--prices", "free"),
            "--prices: free is no price list; there are azure-hot, gcs-standard",
        ),
    ],
)
def test_look_22_what_is_wrong_is_said(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 1 and says in done.output


def test_look_22_a_warehouse_on_a_disk_has_no_calls_to_pay(stub: StubService) -> None:
    stub.warehouse, stub.store_use = "/w", None
    done = run("--url", stub.url)
    assert done.exit_code == 1 and "/w is on a disk" in done.output
