"""The process: its ready line, its drain, what it refuses to start with, and acks around a kill."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner

from deltamq.api.command import serve_command
from deltamq.tables.config import conf_folder, load
from tests.forked import Forked, run_forked

COMMAND = [sys.executable, "-c", "from deltamq.api.command import serve_command; serve_command()"]


class Process:
    """`deltamq serve` on a free port; a new Python if it starts `from_nothing`, which takes two seconds of a core."""

    def __init__(self, warehouse: Path, *flags: str, from_nothing: bool = False, **environ: str) -> None:
        # the process writes into a file, whose pace never stops it
        self._log = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 - it is read while the process runs; close() closes it
        arguments = ["--warehouse", str(warehouse), "--port", "0", *flags]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            self.popen = _new(arguments, self._log.name) if from_nothing else _forked(arguments, self._log)
        assert self.popen.stdout is not None
        self.ready_line = self.popen.stdout.readline()
        found = re.fullmatch(r"serving http://127\.0\.0\.1:(\d+) warehouse (.+)\n", self.ready_line)
        assert found is not None, (self.ready_line, self.logs)
        self.port = int(found[1])

    def send(self, body: str, seq: int | None = None, **query: str) -> dict[str, Any]:
        """Produce one message; its answer."""
        request: dict[str, Any] = {"messages": [{"body": body}]}
        if seq is not None:
            request["producer"] = {"id": "p", "seq": seq}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            text = "&".join(f"{k}={v}" for k, v in query.items())
            connection.request(
                "POST", f"/v1/topics/orders/messages?{text}", json.dumps(request), {"Content-Type": "application/json"}
            )
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer

    def stored(self) -> list[str]:
        """All bodies of the topic."""
        bodies = []
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            for broker in ("a", "b"):
                path = f"/v1/topics/orders/partitions/orders%40broker-{broker}/messages"
                connection.request("GET", f"{path}?max_messages=1000000&max_bytes=67108864")
                bodies += [m["body"] for m in json.loads(connection.getresponse().read())["messages"]]
        return bodies

    def end(self, number: signal.Signals) -> int:
        """Signal the process and wait for its end; its status."""
        self.popen.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.popen.wait(60)
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        return status

    def close(self) -> None:
        self._log.close()

    @property
    def logs(self) -> str:
        return Path(self._log.name).read_text(encoding="utf-8")


def _new(arguments: list[str], log: str) -> subprocess.Popen[str]:
    with open(log, "a") as stderr:
        return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True)


def _forked(arguments: list[str], log: IO[str]) -> Forked:
    return Forked("deltamq.mq.client.cli", "serve", *arguments, log=log)


@contextmanager
def serving(warehouse: Path, *flags: str, from_nothing: bool = False, **environ: str) -> Iterator[Process]:
    """A process that is killed at the latest when the block ends."""
    process = Process(warehouse, *flags, from_nothing=from_nothing, **environ)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.end(signal.SIGKILL)
        process.close()


def test_it_says_where_it_serves_has_arrow_and_no_pandas_and_ends_with_status_0(tmp_path: Path) -> None:
    with serving(tmp_path, from_nothing=True) as process:
        assert process.ready_line.endswith(f" warehouse {tmp_path}\n")
        if sys.platform == "linux":  # others do not say which files a process has mapped
            mapped = Path(f"/proc/{process.popen.pid}/maps").read_text()
            assert "pyarrow" in mapped and "/pandas/" not in mapped
        assert process.send("a")["durable"] is True
        stdout = process.popen.stdout
        assert process.popen.poll() is None and stdout is not None
        process.popen.send_signal(signal.SIGTERM)
        assert stdout.read() == "", "standard output carries the ready line only"
        assert process.wait() == 0
        assert "event=stopping signal=SIGTERM" in process.logs
        assert all(line.startswith("time=") for line in process.logs.splitlines()), process.logs


def test_logs_hold_neither_bodies_nor_keys(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        process.send("top-secret-body")
        with closing(http.client.HTTPConnection("127.0.0.1", process.port)) as connection:
            connection.request("POST", "/v1/topics/a%0Ab/messages", b'{"messages": [{"key": "top-secret"}]}')
            assert connection.getresponse().status == 400
        assert process.end(signal.SIGTERM) == 0
        assert "top-secret" not in process.logs


@pytest.mark.promise("DAMAGE-6")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_drain_answers_and_stores_everything_that_was_accepted(tmp_path: Path, flush: str) -> None:
    acknowledged: list[str] = []
    with serving(tmp_path) as process, ThreadPoolExecutor(8) as threads:

        def produce(client: int) -> None:
            for i in range(100_000):
                try:
                    answer = process.send(f"{client}-{i}", flush=flush)
                except (OSError, http.client.HTTPException):
                    return  # no longer accepting
                assert "ranges" in answer, answer
                acknowledged.append(f"{client}-{i}")

        clients = [threads.submit(produce, client) for client in range(8)]
        while len(acknowledged) < 200:
            time.sleep(0.01)
        assert process.end(signal.SIGTERM) == 0
        for client in clients:
            client.result()
    with serving(tmp_path) as process:
        stored = process.stored()
    assert sorted(stored) == sorted(acknowledged), "no acknowledged message is lost, none is stored unseen"


def test_a_drain_finishes_a_request_whose_body_is_still_coming(tmp_path: Path) -> None:
    body = b'{"messages": [{"body": "slow"}]}'
    with serving(tmp_path) as process:
        with closing(socket.create_connection(("127.0.0.1", process.port), timeout=30)) as sock:
            head = f"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            sock.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body[:10])
            _until_read(process)
            process.popen.send_signal(signal.SIGTERM)
            while "event=stopping" not in process.logs:
                time.sleep(0.01)
            sock.sendall(body[10:])
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert process.wait() == 0


def _until_read(process: Process) -> None:
    """Until the service has begun to work on the request that is under way."""
    while True:
        with closing(http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)) as connection:
            connection.request("GET", "/metrics")
            if b"deltamq_queue_requests 1.0" in connection.getresponse().read():
                return


@pytest.mark.promise("ONCE-2")
@pytest.mark.parametrize("point", ["batch.before_close", "ack.before_respond", "ack.half_responded"])
def test_send_05_a_kill_around_the_ack_stores_the_repeated_request_once(tmp_path: Path, point: str) -> None:
    with serving(tmp_path, DELTAMQ_FAILPOINTS=f"{point}=kill@3") as process:
        places = [process.send("a", 0), process.send("b", 1)]
        with pytest.raises((OSError, http.client.HTTPException)):
            process.send("c", 2)
        assert process.wait() == -signal.SIGKILL
    with serving(tmp_path) as process:
        before = process.stored()
        assert sorted(before) == (["a", "b"] if point == "batch.before_close" else ["a", "b", "c"])
        again = process.send("c", 2)
        assert again["duplicate"] is (point != "batch.before_close")
        assert [process.send(body, seq)["ranges"] for seq, body in enumerate("ab")] == [p["ranges"] for p in places]
        assert sorted(process.stored()) == ["a", "b", "c"]
        assert process.end(signal.SIGTERM) == 0


def test_a_failure_before_the_answer_is_an_unknown_outcome(tmp_path: Path) -> None:
    with serving(tmp_path, DELTAMQ_FAILPOINTS="ack.before_respond=raise@1") as process:
        problem = process.send("a", 0)
        assert (problem["status"], problem["code"]) == (503, "outcome_unknown")
        assert process.send("a", 0)["duplicate"] is True
        assert process.stored() == ["a"]


def test_sec_08_nothing_is_open_beyond_the_machine_without_protection(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        for auth in ("false", "true"):
            result = CliRunner(env={"DELTAMQ_SERVICE_AUTH": auth}).invoke(
                serve_command, ["--host", host, "--port", "0", "--kafka-port", "1", "--warehouse", str(tmp_path)]
            )
            assert result.exit_code == 1 and "no TLS" in result.stderr
            assert ("no authentication" in result.stderr) is (auth == "false")
    assert list(tmp_path.iterdir()) == []


def test_sec_08_no_shipped_profile_opens_it_and_the_cluster_has_authentication() -> None:
    folder = conf_folder({})
    assert folder is not None
    names = {path.stem for path in folder.glob("*.toml")} - {"prices"}
    profiles = {name: load(name, environ={}, folder=folder).service for name in names}
    assert not any(one.allow_open_access for one in profiles.values())
    assert profiles["cluster"].auth and profiles["cluster"].host == "0.0.0.0"
    assert all(one.auth or one.host == "127.0.0.1" for one in profiles.values())


def test_sec_08_an_open_service_warns_and_a_guarded_one_does_not(tmp_path: Path) -> None:
    for auth, warned in (("false", True), ("true", False)):
        with serving(tmp_path / auth, DELTAMQ_SERVICE_AUTH=auth) as process:
            assert process.end(signal.SIGTERM) == 0
            assert ("level=WARNING logger=deltamq.api event=open_access" in process.logs) is warned
            assert process.logs.count(" event=started ") == 1


def test_look_13_a_start_is_one_event_that_counts_principals_and_names_what_differs_from_the_defaults(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, DELTAMQ_SERVICE_AUTH="false", DELTAMQ_SERVICE_DRAIN_MS="1234") as process:
        assert process.end(signal.SIGTERM) == 0
        (started,) = [line for line in process.logs.splitlines() if " event=started " in line]
        assert started.endswith(" principals=0")
        settings = [line for line in process.logs.splitlines() if " event=setting " in line]
        assert any("service.drain_ms=1234 " in line for line in settings)
        assert not any("service.auth=" in line for line in settings), "it is as by default"


def test_it_says_when_its_port_is_taken(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(serve_command, ["--port", port, "--warehouse", str(tmp_path)])
    assert result.exit_code == 1 and f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_it_says_why_it_cannot_start(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    for warehouse, told in ((str(occupied), "file"), ("ftp://host/x", "ftp:// is not supported")):
        ended = run_forked("deltamq.mq.client.cli", "serve", "--warehouse", warehouse, "--port", "0")
        assert ended.returncode != 0 and ended.stdout == ""
        (line,) = [line for line in ended.stderr.splitlines() if "event=start_failed" in line]
        assert told in line and "Traceback" not in ended.stderr


def test_it_says_which_setting_is_unknown(tmp_path: Path) -> None:
    result = CliRunner(env={"DELTAMQ_SERVICE_PROT": "1"}).invoke(serve_command, ["--warehouse", str(tmp_path)])
    assert result.exit_code == 1 and "DELTAMQ_SERVICE_PORT" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such setting")
def test_the_process_uses_no_huge_pages_unless_the_environment_says_so(tmp_path: Path) -> None:
    # A process with a Spark session has this variable, and the services that it starts inherit it.
    with serving(tmp_path / "small", MIMALLOC_PURGE_DELAY="10000") as process:
        assert _huge_pages(process) in ([], ["0"]), "old kernels do not tell"
    with serving(tmp_path / "as-told", MIMALLOC_ALLOW_THP="1") as process:
        assert _huge_pages(process) in ([], ["1"])


def _huge_pages(process: Process) -> list[str]:
    status = Path(f"/proc/{process.popen.pid}/status").read_text(encoding="utf-8")
    return re.findall(r"THP_enabled:\t(\d)", status)
