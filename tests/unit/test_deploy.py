"""The files of conf/deploy: what they name exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deltamq.tables.config import ConfigInvalid, load

_DEPLOY = Path(__file__).parents[2] / "conf" / "deploy"
_FILES = sorted(path for path in _DEPLOY.rglob("*") if path.is_file())
_NAMED = sorted({name for path in _FILES for name in re.findall(r"\bDELTAMQ_[A-Z0-9_]+", path.read_text("utf-8"))})
#: What a comment says that the cluster would set, and a pod must not get.
_NOT_OURS = {"DELTAMQ_SERVICE_HOST"}


@pytest.mark.parametrize("name", [name for name in _NAMED if name not in _NOT_OURS])
def test_every_variable_that_a_file_names_is_a_setting(name: str) -> None:
    said = ""
    try:
        load(environ={name: "x"})
    except ConfigInvalid as error:
        said = str(error)
    assert "names no setting" not in said


def test_compose_starts_the_jobs_when_the_service_is_ready() -> None:
    services = yaml.safe_load((_DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    assert services["jobs"]["depends_on"]["service"]["condition"] == "service_healthy"
    targets = re.findall(r"^FROM \S+ AS (\w+)$", (_DEPLOY / "Containerfile").read_text("utf-8"), re.MULTILINE)
    assert {one["build"]["target"] for one in services.values()} <= set(targets)
    assert all(port.startswith("127.0.0.1:") for port in services["service"]["ports"]), "without keys, for this machine"


@pytest.mark.parametrize("name", ["service.yaml", "jobs.yaml"])
def test_pods_get_no_variables_of_the_clusters_services(name: str) -> None:
    assert "enableServiceLinks: false" in (_DEPLOY / "helm" / "templates" / name).read_text("utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    units = [tmp_path / path.name for path in (_DEPLOY / "systemd").glob("*.service")]
    for unit in units:  # the commands are not installed here
        text = (_DEPLOY / "systemd" / unit.name).read_text("utf-8")
        unit.write_text(text.replace("/opt/deltamq/bin/deltamq", "/bin/true"), "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Unknown" not in done.stderr, done.stderr
