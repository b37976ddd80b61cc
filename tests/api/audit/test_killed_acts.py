"""Administrative acts around a kill -9: each is in the audit once, and what it says is true (SPEC SEC-40)."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.first_start import make_administrator
from tests.api.running import config_for, until
from tests.e2e.service_process import ServiceProcess

#: Where the process is killed, and what is true after a restart: whether there is a topic, and what the audit says.
POINTS = (
    ("audit.before_begun", False, None),
    ("audit.after_begun", False, "failed"),
    ("audit.before_ended", True, "done"),
    ("audit.after_ended", True, "done"),
)
#: What a killed process left is settled when its lease is over.
LEASE = {"LEASE_MS": "3000", "LEASE_RENEW_MS": "700", "LEASE_MARGIN_MS": "500"}


class Admin:
    """An administrator who calls one process."""

    def __init__(self, process: ServiceProcess, token: str) -> None:
        self._port = int(process.url.rpartition(":")[2])
        self._token = token

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None

    def acts(self) -> list[dict[str, Any]]:
        status, found = self.call("GET", "/v1/audit?limit=1000")
        assert status == 200 and found["next"] is None, found
        acts: list[dict[str, Any]] = found["acts"]
        return acts

    def topics(self) -> list[str]:
        topics: list[str] = self.call("GET", "/v1/topics")[1]["topics"]
        return topics


@contextmanager
def serving(warehouse: Path, failpoint: str = "") -> Iterator[ServiceProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAMQ_SERVICE_AUTH", "true")
        patch.setenv("DELTAMQ_FAILPOINTS", failpoint)
        for name, value in LEASE.items():
            patch.setenv(f"DELTAMQ_SERVICE_{name}", value)
        process = ServiceProcess(warehouse)
    try:
        yield process
    finally:
        process.close()


def killed(warehouse: Path, token: str, failpoint: str, topic: str) -> bool:
    """Make a topic in a process that is killed at the failpoint; return whether the call was answered before."""
    with serving(warehouse, failpoint) as process:
        try:
            Admin(process, token).call("PUT", f"/v1/topics/{topic}", {"partitions": 1})
        except (OSError, http.client.HTTPException):
            assert process.wait() == -signal.SIGKILL
            return False
    return True


#: Acts that are in the audit, by the topics that they are about, and what became of each.
OUTCOMES = [(f"t{number}", outcome) for number, (_, _, outcome) in enumerate(POINTS) if outcome is not None]


@contextmanager
def killed_at_each_point(warehouse: Path) -> Iterator[Admin]:
    """A process that has settled what was left of acts whose processes were killed, each at another point."""
    _, token = make_administrator(config_for(warehouse), "admin")
    for number, (point, _, _) in enumerate(POINTS):
        assert not killed(warehouse, token, f"{point}=kill", f"t{number}"), point
    with serving(warehouse) as process:
        admin = Admin(process, token)
        until(lambda: "unknown" not in [one["outcome"] for one in admin.acts()], within_s=60)
        yield admin


@pytest.mark.promise("AUDIT-2")
def test_sec_40_an_act_is_in_the_audit_once_wherever_its_process_is_killed(tmp_path: Path) -> None:
    with killed_at_each_point(tmp_path / "warehouse") as admin:
        found = [(one["name"], one["outcome"]) for one in admin.acts() if one["resource"] == "topic"]
        assert found == OUTCOMES
        assert admin.topics() == [f"t{n}" for n, (_, is_there, _) in enumerate(POINTS) if is_there]
        codes = {one["name"]: one["code"] for one in admin.acts()}
        assert codes["t1"] == codes["t2"] == "process_ended"
        # What was not confirmed can be repeated, and is an act of its own.
        for number in range(len(POINTS)):
            assert admin.call("PUT", f"/v1/topics/t{number}", {"partitions": 1})[0] in (200, 201)
        again = [one for one in admin.acts() if one["resource"] == "topic"][len(found) :]
        assert [one["outcome"] for one in again] == ["done"] * len(POINTS)


COMMITS = ("commit.after_data_write", "commit.after_link", "commit.after_dir_fsync")


@pytest.mark.long
@pytest.mark.parametrize(("point", "nth"), [*product(COMMITS, range(1, 16))])
def test_sec_40_what_the_audit_says_is_true_wherever_a_commit_is_killed(tmp_path: Path, point: str, nth: int) -> None:
    _, token = make_administrator(config_for(warehouse := tmp_path / "warehouse"), "admin")
    try:
        answered = killed(warehouse, token, f"{point}=kill@{nth}", "orders")
    except (AssertionError, ChildProcessError):
        answered = False  # it was killed while it started
    with serving(warehouse) as process:
        admin = Admin(process, token)
        until(lambda: "unknown" not in [one["outcome"] for one in admin.acts()], within_s=60)
        found = [one["outcome"] for one in admin.acts() if one["name"] == "orders"]
        is_there = admin.topics() == ["orders"]
        assert len(found) <= 1
        assert is_there == (found == ["done"])
        assert is_there or not answered
