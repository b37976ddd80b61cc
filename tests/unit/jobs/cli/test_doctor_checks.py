"""What the doctor asks of Spark, and whether commands use the warehouse that the service serves (SPEC RETRY-7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.jobs.cli.doctor_checks import spark_checks, warehouse_checks
from deltamq.mq.client.cli.doctor import CheckOutcome, Subject
from tests.unit.client.stub_service import StubService


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService() as found:
        yield found


def test_the_doctor_finds_java_and_jars() -> None:
    assert [(one.name, one.health) for one in spark_checks(Subject(url="u"))] == [
        ("java", CheckOutcome.OK),
        ("jars", CheckOutcome.OK),
    ]


def test_the_doctor_says_that_there_is_no_java_and_which_jar_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("DELTAMQ_JARS", str(tmp_path))
    java, *jars = spark_checks(Subject(url="u"))
    assert java.health is CheckOutcome.FAILED and "JAVA_HOME" in java.detail and java.remedy
    assert jars and {one.health for one in jars} == {CheckOutcome.WARNING}
    assert "delta-spark" in jars[0].detail and "deltamq setup" in (jars[0].remedy or "")


def test_retry_7_the_doctor_compares_the_warehouse_with_the_services(stub: StubService, tmp_path: Path) -> None:
    stub.warehouse = str(tmp_path)
    (check,) = warehouse_checks(Subject(url=stub.url, warehouse=str(tmp_path)))
    assert check.health is CheckOutcome.OK
    (check,) = warehouse_checks(Subject(url=stub.url, warehouse=str(tmp_path / "other")))
    assert check.health is CheckOutcome.FAILED
    assert f"--warehouse {tmp_path}" in (check.remedy or "") and str(tmp_path / "other") in check.detail
    assert list(warehouse_checks(Subject(url="http://127.0.0.1:1", warehouse=str(tmp_path)))) == []
