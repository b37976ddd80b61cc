"""The log of a running service: JSON, its level at run time, slow requests with where the time went."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.errors import Unprocessable
from tests.api.running import until
from tests.forked import Forked

SLOW_MS = 150


class Logged:
    """A service process that writes JSON to a file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "log"
        self._out = self._file.open("w")
        settings = {
            "DELTAMQ_SERVICE_LOG_FORMAT": "json",
            "DELTAMQ_SERVICE_LOG_LEVEL": "warning",
            "DELTAMQ_SERVICE_SLOW_REQUEST_MS": str(SLOW_MS),
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            arguments = ("serve", "--port", "0", "--warehouse", str(folder / "warehouse"))
            self.process = Forked("deltamq.mq.client.cli", *arguments, log=self._out)
        line = self.process.stdout.readline()
        self.url = line.split()[1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def events(self, name: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._file.read_text().splitlines()]
        return [one for one in found if one.get("event") == name]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()
        self._out.close()


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    service = Logged(tmp_path_factory.mktemp("logged"))
    try:
        yield service
    finally:
        service.end()


def test_look_13_the_level_is_a_setting_and_changes_at_run_time(
    logged: Logged, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(logged.url) as admin:
        admin.create_topic("quiet")
        assert logged.events("topic_put") == [] == logged.events("setting"), "they are of a lower level"
        assert cli._status(["log-level", "info", "--logger", "deltamq.api", "--url", logged.url]) == 0
        assert capsys.readouterr().out == "deltamq.api logs from info on\n"
        admin.create_topic("told")
        (event,) = logged.events("topic_put")
        assert (event["topic"], event["level"], event["logger"]) == ("told", "INFO", "deltamq.api")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])
        assert admin.set_log_level("warning").logger == "deltamq"
        with pytest.raises(Unprocessable) as refused:
            admin.set_log_level("debug", logger="uvicorn")
        assert refused.value.field == "logger"


def test_look_13_a_slow_request_is_logged_with_where_the_time_went(logged: Logged) -> None:
    with Admin(logged.url) as admin:
        admin.create_topic("orders", partitions=1)
    body = json.dumps({"messages": [{"body": "slow"}]}).encode()
    head = "POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", logged.port)) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        time.sleep(2 * SLOW_MS / 1_000)  # a client that is slow: nothing else tells the service that time has gone
        client.sendall(body[10:])
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")
    until(lambda: [one for one in logged.events("slow_request") if "orders/messages" in one["path"]])
    (event,) = [one for one in logged.events("slow_request") if "orders/messages" in one["path"]]
    assert (event["method"], event["status"]) == ("POST", "200")
    assert int(event["ms"]) >= int(event["body_ms"]) >= SLOW_MS and int(event["store_ms"]) >= 0
    assert int(event["store_ms"]) + 1 >= int(event["commit_ms"]) >= int(event["publish_ms"])
    assert {"queue_ms", "encode_ms"} <= event.keys()
    assert int(event["ms"]) == pytest.approx(
        sum(int(event[name]) for name in ("body_ms", "work_ms", "answer_ms")), abs=3
    )


def test_look_13_a_call_that_was_to_wait_is_not_slow(logged: Logged) -> None:
    with Admin(logged.url) as admin:
        admin.create_topic("waited", partitions=1)
    path = f"/v1/topics/waited/partitions/waited%40broker-a/messages?wait_ms={3 * SLOW_MS}"
    with socket.create_connection(("127.0.0.1", logged.port)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n".encode())
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")
    assert [one for one in logged.events("slow_request") if "waited/partitions" in one["path"]] == []
