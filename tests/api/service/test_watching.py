"""Commands that people look at for long: `tail`, `group watch`, `--watch`, and completion, at a real service."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.mq.client.cli import root as cli
from deltamq.mq.client.cli.history import sparkline
from tests.api.running import Api, config_for, running
from tests.e2e.service_process import CLI
from tests.forked import Forked, run_forked


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(config_for(tmp_path_factory.mktemp("watched"))) as found:
        found.put_topic("orders", partitions=1)
        found.send("orders", *(f"m{number}" for number in range(20)))
        found.call("POST", "/v1/groups/billing/topics/orders/pop", {"max_messages": 5})
        yield found


def _started(api: Api, *arguments: str) -> Forked:
    return Forked(CLI, *arguments, "--url", f"http://127.0.0.1:{api.port}")


def _interrupted(process: Forked) -> None:
    process.send_signal(signal.SIGINT)
    with process.stdout as stdout:
        stdout.read()
    assert process.wait(20) == 130


def test_tail_begins_before_the_end_and_goes_on(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{api.port}"
    api.put_topic("tailed", partitions=1)
    api.send("tailed", "0", "1", "2", "3")
    process = _started(api, "tail", "tailed", "--last", "2", "--max", "4", "--json")
    assert [json.loads(process.stdout.readline())["body"] for _ in range(2)] == ["2", "3"]
    api.send("tailed", "4", "5")
    with process.stdout as rest:
        assert [json.loads(line)["body"] for line in rest] == ["4", "5"]
    assert process.wait(60) == 0
    assert cli._status(["tail", "tailed", "--last", "99", "--max", "6", "--url", url]) == 0
    assert [line.rsplit("\t", 1)[1] for line in capsys.readouterr().out.splitlines()] == list("012345")
    assert cli._status(["tail", "nothing", "--url", url]) == 1


def test_a_watched_command_prints_until_it_is_interrupted(api: Api) -> None:
    process = _started(api, "group", "show", "billing", "--json", "--watch", "0.1")
    seen = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert {one["group"] for one in seen} == {"billing"}
    _interrupted(process)


def test_group_watch_and_history_show_lag_over_time(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    async def sampled() -> None:
        await api.service.gauges.now(fresh_s=0.0)
        await api.service.samples.sample()

    asyncio.run_coroutine_threadsafe(sampled(), api.service.loop).result(30)
    process = _started(api, "group", "watch", "billing", "--every", "0.1")
    head, columns, row = (process.stdout.readline() for _ in range(3))
    assert head == "billing: lag 20, 0 clients\n" and columns.split()[:3] == ["topic", "lag", "in"]
    assert row.split()[:3] == ["orders", "20", "5"] and row.split()[-1].startswith("▁")
    _interrupted(process)
    url = f"http://127.0.0.1:{api.port}"
    assert cli._status(["history", "lag", "--group", "billing", "--url", url]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:5] == ["billing", "orders", "20", "20", "20"]
    assert cli._status(["history", "lag", "--group", "nobody", "--url", url]) == 0
    assert capsys.readouterr().out.startswith("no samples of lag yet")


def test_a_sparkline_has_the_highest_of_each_part() -> None:
    assert sparkline([0, 1, 2, 7]) == "▁▂▃█" and sparkline([5, 5]) == "▁▁" and sparkline([]) == ""
    line = sparkline([0.0] * 500 + [9.0] + [0.0] * 499)
    assert len(line) == 40 and line.count("█") == 1


@pytest.mark.parametrize(("words", "found"), [("deltamq gro", "group"), ("deltamq group wa", "watch")])
def test_a_shell_completes_commands(words: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"_DELTAMQ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    done = run_forked(CLI)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"plain,{found}"])


def test_the_script_for_bash_is_one_that_bash_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    assert cli._status(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(f"{capsys.readouterr().out}\ncomplete -p deltamq\n")
    done = subprocess.run((bash, str(script)), capture_output=True, text=True, check=True)
    assert "deltamq" in done.stdout
