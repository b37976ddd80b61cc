"""Secrets of a service, and keys of its callers, are nowhere that somebody else reads (SPEC SEC-6, SEC-23)."""

from __future__ import annotations

import http.client
import resource
import signal
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from deltamq.api.first_start import make_administrator
from tests.api.running import config_for
from tests.api.test_serve import Process, serving
from tests.e2e.service_process import CLI
from tests.forked import run_forked

CLUSTER, SHARED, HANDLES = "c1uster-s3cret-" * 3, "shar3d-s3cret-" * 3, "00ff" * 12
SECRETS = {
    "DELTAMQ_SERVICE_AUTH": "true",
    "DELTAMQ_SERVICE_CLUSTER_SECRET": CLUSTER,
    "DELTAMQ_SERVICE_CLUSTERS_SHARED_SECRET": SHARED,
    "DELTAMQ_QUEUE_HANDLE_SECRET": HANDLES,
}
NONE: dict[str, str] = {}


def status_of(process: Process, path: str, authorization: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)) as connection:
        connection.request("GET", path, headers={"Authorization": authorization})
        return connection.getresponse().status


def core_limit(pid: int) -> int:
    """The largest core dump that a process leaves."""
    return resource.prlimit(pid, resource.RLIMIT_CORE)[0]


def test_sec_06_no_secret_and_no_key_is_in_the_log_whatever_is_asked(tmp_path: Path) -> None:
    _, token = make_administrator(config_for(tmp_path), "admin")
    wrong = f"{token[:21]}{'w' * 43}"
    with serving(tmp_path, **SECRETS) as process:
        assert status_of(process, "/v1/topics", f"Bearer {token}") == 200
        for sent in (f"Bearer {wrong}", f"Basic {wrong}", f"Bearer {token} {wrong}", f"Bearer {token}x"):
            assert status_of(process, "/v1/topics", sent) == 401
        assert status_of(process, f"/v1/topics/{token[21:]}", f"Bearer {wrong}") == 401
        assert process.end(signal.SIGTERM) == 0
        assert "service.cluster_secret" in process.logs, "settings are told"
        for secret in (CLUSTER, SHARED, HANDLES, token[21:], wrong[21:]):
            assert secret not in process.logs


def test_sec_06_a_start_that_fails_tells_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    ended = run_forked(CLI, "serve", "--warehouse", str(occupied), "--port", "0")
    assert ended.returncode != 0 and "event=start_failed" in ended.stderr
    monkeypatch.setenv("DELTAMQ_SERVICE_CLUSTER_SECRET", "t00-short")
    refused = run_forked(CLI, "serve", "--warehouse", str(tmp_path), "--port", "0")
    assert refused.returncode == 1 and "DELTAMQ_SERVICE_CLUSTER_SECRET" in refused.stderr
    for secret in (CLUSTER, SHARED, HANDLES, "t00-short"):
        assert secret not in ended.stdout + ended.stderr + refused.stdout + refused.stderr


def test_sec_06_a_process_that_has_secrets_leaves_no_core_dump(tmp_path: Path) -> None:
    """What a process has in memory would be in the file, keys of callers included."""
    with serving(tmp_path / "first") as process:
        forking = psutil.Process(process.popen.pid).ppid()
    soft, hard = resource.prlimit(forking, resource.RLIMIT_CORE)
    if hard == 0:
        pytest.skip("the machine allows no core dumps")
    resource.prlimit(forking, resource.RLIMIT_CORE, (hard, hard))
    try:
        for environ, limit in ((SECRETS, 0), (NONE, hard)):
            with serving(tmp_path / str(limit), **environ) as process:
                assert core_limit(process.popen.pid) == limit
    finally:
        resource.prlimit(forking, resource.RLIMIT_CORE, (soft, hard))
