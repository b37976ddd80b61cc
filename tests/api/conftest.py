"""One service for a module's tests; a test that needs other settings starts its own with `running`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.api.as_static import AsStatic, is_static
from tests.api.running import Api, config_for, running

_numbers = itertools.count()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Api]:
    """A service that creates topics on their first message; for `static` tests all topics are static."""
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        yield AsStatic(found.port, found.service) if is_static(request) else found


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"orders.{next(_numbers)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play the tests of a module that is marked `static_too` against static topics as well.

    Those that start a service for each test are played a second time by `make faults` alone, unless it is `always`.
    """
    marks = {mark.name: mark for mark in reversed(list(metafunc.definition.iter_markers()))}
    if "static_too" not in marks or "plain_only" in marks:
        return
    always = marks["static_too"].kwargs.get("always")
    for fixture, scope in (("api", "module"), ("queue", "function")):
        if fixture in metafunc.fixturenames:
            seldom = () if always or scope == "module" else (pytest.mark.long,)
            kinds = ["plain", pytest.param("static", marks=seldom)]
            metafunc.parametrize(fixture, kinds, indirect=True, scope=scope)
