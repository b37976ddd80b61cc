"""The doctor's frame and the service's own check."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from deltamq.mq.client.cli.doctor import (
    Check,
    Checker,
    CheckOutcome,
    Subject,
    check_service,
    examine,
    installed_checkers,
)
from tests.unit.client.cli.cli_run import Run
from tests.unit.client.stub_service import StubService


def test_a_service_in_order(stub: StubService) -> None:
    (check,) = check_service(Subject(url=stub.url))
    assert check.health is CheckOutcome.OK
    assert "serves warehouse /w with broker-a, broker-b" in check.detail


def test_retry_7_the_doctor_names_jobs_that_run_nowhere(stub: StubService) -> None:
    stub.missing_jobs = [{"job": "revive", "ok_at": None, "means": "nothing comes again"}]
    service, job = check_service(Subject(url=stub.url))
    assert service.health is CheckOutcome.OK
    assert job.health is CheckOutcome.WARNING and "no job revive runs on /w: nothing comes again" in job.detail
    assert "deltamq jobs run --warehouse /w" in (job.remedy or "")


@pytest.mark.parametrize("command", ["doctor", "cluster"])
def test_look_09_a_disk_that_is_nearly_full_is_said(run: Run, stub: StubService, command: str) -> None:
    stub.disk = {"size_bytes": 100 << 30, "free_bytes": 10 << 30}
    assert "nearly full" not in run(command).out
    stub.disk = {"size_bytes": 100 << 30, "free_bytes": 5 << 30}
    assert "/w is nearly full: 5.0 of 100.0 GiB are free" in " ".join(run(command).out.split())


def test_rely_10_the_doctor_and_cluster_name_what_has_stopped(run: Run, stub: StubService) -> None:
    stub.stopped = [
        {"space": "topics", "topic": "t", "partition": "t@a", "queue": None, "code": "corrupt", "detail": "it is cut"}
    ]
    _, stopped = check_service(Subject(url=stub.url))
    assert stopped.health is CheckOutcome.FAILED and "t@a of t is stopped: it is cut" in stopped.detail
    assert "deltamq verify" in (stopped.remedy or "")
    assert "stopped: t@a of t: it is cut" in run("cluster").out


def test_a_service_that_is_not_ready(stub: StubService) -> None:
    stub.ready = False
    (check,) = check_service(Subject(url=stub.url))
    assert check.health is CheckOutcome.WARNING
    assert check.remedy


def test_a_service_that_is_not_there() -> None:
    with StubService() as stub:
        url = stub.url
    (check,) = check_service(Subject(url=url))
    assert check.health is CheckOutcome.FAILED
    assert "deltamq serve" in (check.remedy or "")


def test_a_checker_that_raises_is_a_failed_check_and_the_others_still_run() -> None:
    def broken(subject: Subject) -> Iterable[Check]:
        raise RuntimeError("boom")

    def fine(subject: Subject) -> Iterable[Check]:
        yield Check(name="fine", health=CheckOutcome.OK, detail=subject.profile)

    def cannot_load() -> Checker:
        raise ImportError("no such module")

    checks = list(examine(Subject(url="u"), {"a": lambda: broken, "b": cannot_load, "c": lambda: fine}))
    assert [(c.name, c.health) for c in checks] == [
        ("a", CheckOutcome.FAILED),
        ("b", CheckOutcome.FAILED),
        ("fine", CheckOutcome.OK),
    ]
    assert "RuntimeError: boom" in checks[0].detail


def test_what_is_not_installed_is_not_looked_at() -> None:
    def without_spark() -> Checker:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    (check,) = examine(Subject(url="u"), {"spark": without_spark})
    assert check.health is CheckOutcome.OK and "pyspark is not installed" in check.detail


def test_what_is_not_in_order_names_a_remedy() -> None:
    with pytest.raises(AssertionError, match="remedy"):
        Check(name="x", health=CheckOutcome.FAILED, detail="broken")


def test_the_services_check_is_always_installed_and_comes_last() -> None:
    assert list(installed_checkers())[-1] == "service"


def test_sec_23_the_doctor_says_that_the_token_is_refused(stub: StubService) -> None:
    stub.valid_tokens = {"good"}
    [check] = check_service(Subject(url=stub.url, access={"token": "bad"}))
    assert check.health is CheckOutcome.FAILED
    assert "DELTAMQ_CLIENT_TOKEN" in (check.remedy or "") and "bad" not in check.detail
    [check] = check_service(Subject(url=stub.url, access={"token": "good"}))
    assert check.health is CheckOutcome.OK
