"""A service process for each module, one for each test that kills it, and one main job for all tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.as_static import PREFIX
from tests.e2e.main_job import EVENTS, MainJob, still_there
from tests.e2e.service_process import ServiceProcess

_numbers = itertools.count()


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    service = ServiceProcess(tmp_path_factory.mktemp("e2e") / "warehouse")
    yield service
    service.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    service = ServiceProcess(tmp_path / "warehouse")
    yield service
    service.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; for `static` tests one that `create` makes a static topic."""
    return f"{getattr(request, 'param', '')}flights.{next(_numbers)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play what is marked `static_too` against static topics as well (`tests/e2e/as_static.py`)."""
    marks = {mark.name: mark for mark in reversed(list(metafunc.definition.iter_markers()))}
    if "static_too" not in marks or "plain_only" in marks or "topic" not in metafunc.fixturenames:
        return
    seldom = () if marks["static_too"].kwargs.get("always") else (pytest.mark.long,)
    kinds = [pytest.param("", id="plain"), pytest.param(PREFIX, id="static", marks=seldom)]
    metafunc.parametrize("topic", kinds, indirect=True)


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MainJob]:
    """A main job that has printed its report and continues to serve; at the end Ctrl-C ends it cleanly."""
    # it serves for two minutes of a core: merging every two seconds, as users have it, would take half of another
    settings = {"DELTAMQ_JOBS_MERGE_EVERY_MS": "8000"}
    job = MainJob(tmp_path_factory.mktemp("main-job") / "warehouse", "--events", str(EVENTS), settings=settings)
    try:
        job.wait_for("until Ctrl-C")
        yield job
        left = job.processes()
        assert [line for line in job.commands() if "deltamq.jobs.flights" in line] == [], (
            "only service and jobs continue"
        )
        assert job.interrupt() == 0, job.output
        assert still_there(left) == []
    finally:
        job.end()
