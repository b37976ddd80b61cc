"""pytest's plugin: the queue in memory and a real service as fixtures, in tests of users."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

README = Path(__file__).parents[3] / "mq" / "client" / "README.md"


@pytest.fixture(autouse=True)
def plain(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run no plugin of this project's own tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p deltamq.mq.client.pytest_plugin -p no:cacheprovider")


def test_the_example_of_the_readme_passes_by_the_entry_point_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis")
    section = README.read_text(encoding="utf-8").partition("## Your own tests\n")[2]
    example = re.search(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert example is not None
    pytester.makepyfile(example[1])
    pytester.runpytest_subprocess().assert_outcomes(passed=2)


def test_tests_share_a_service_that_ends_with_them_and_no_queue_in_memory(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAMQ_SERVICE_AUTH", "maybe")  # no service begins with this: it is not handed on
    pytester.makepyfile(
        """
        import os
        import signal

        import pytest

        from deltamq import Admin

        seen = set()

        @pytest.mark.parametrize("number", range(2))
        def test_share(number, deltamq_service, deltamq_memory):
            with Admin(deltamq_service.url) as admin:
                admin.create_topic(f"orders-{number}")
                seen.add(deltamq_service)
                assert len(admin.list_topics()) == 1 + number and len(seen) == 1
            deltamq_memory.create_topic(f"orders-{number}")
            assert len(deltamq_memory.tables.topics) == 1
            print("process", deltamq_service._process.pid)

        def test_it_comes_back(deltamq_service):
            url = deltamq_service.url
            deltamq_service.kill()
            deltamq_service.start()
            with Admin(url) as admin:
                assert admin.list_topics() == ["orders-0", "orders-1"]
            print("process", deltamq_service._process.pid)
        """
    )
    result = pytester.runpytest_subprocess("-s")
    result.assert_outcomes(passed=3)
    processes = set(map(int, re.findall(r"process (\d+)", result.stdout.str())))
    assert len(processes) == 2
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_without_the_extra_the_error_says_what_to_install(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys; sys.modules['uvicorn'] = None")
    pytester.makepyfile("def test_serves(deltamq_service): pass")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*pip install 'deltamq?service?'*"])


def test_who_asks_for_no_fixture_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_what_is_loaded():
            ours = {name for name in sys.modules if name.startswith("deltamq")}
            assert ours == {"deltamq", "deltamq.mq", "deltamq.mq.client", "deltamq.mq.client.pytest_plugin"}
            assert not {"pyarrow", "numpy", "msgspec", "urllib3", "asyncio"} & sys.modules.keys()
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
