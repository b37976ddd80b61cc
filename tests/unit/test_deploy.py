"""The files of conf/deploy: what they name exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deltamq.api.command import serve_command
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


# The chart -----------------------------------------------------------------------------------------------------

_CHART = _DEPLOY / "helm"
_PROGRAMS = Path(__file__).parents[1] / "helm"
#: Without it a helm that is built from its module takes itself for one of a cluster of 2020.
_CLUSTER = ("--kube-version", "1.27.0")


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(shutil.which("go") is None, reason="go, which builds helm, is not installed")
def test_helm_takes_the_chart_and_kubernetes_what_it_makes(tmp_path: Path) -> None:
    _run("go", "build", "-o", f"{tmp_path}/", ".", "helm.sh/helm/v3/cmd/helm", folder=_PROGRAMS)
    (install,) = re.findall(
        r"^helm install mq conf/deploy/helm (.*)$", (_DEPLOY / "README.md").read_text(), re.MULTILINE
    )
    named = shlex.split(install)
    # what else a chart's user sets, so that each branch of the templates is taken
    more = [
        "--set",
        "service.kafkaPort=9092,service.replicas=1,service.brokersPerPod=2,podAnnotations.a=b,nodeSelector.c=d",
    ]
    more += ["--set", "env.DELTAMQ_LOG_FILE_KEEP_MS=3600000", "--set", "tolerations[0].operator=Exists"]
    more += ["--set", "serviceAccount.annotations.e=f", "--set", "jobs.replicas=2"]
    # behind a proxy that ends TLS, with an account of the cluster's
    open_ = ["--set", "warehouse=s3://bucket/deltamq,service.auth=false,service.allowOpenAccess=true"]
    open_ += ["--set", "serviceAccount.create=false,serviceAccount.name=cloud"]
    kinds = {"Service", "StatefulSet", "Deployment", "ServiceAccount", "PodDisruptionBudget"}
    for values, missing in ((named, set()), ([*named, *more], {"PodDisruptionBudget"}), (open_, {"ServiceAccount"})):
        _run(tmp_path / "helm", "lint", "--strict", *_CLUSTER, _CHART, *values)
        made = _run(tmp_path / "helm", "template", "mq", _CHART, *_CLUSTER, *values)
        assert set(_run(tmp_path / "manifests", given=made).split()) == kinds - missing
    refused = subprocess.run([tmp_path / "helm", "template", "mq", _CHART, *_CLUSTER], capture_output=True, text=True)
    assert refused.returncode != 0 and "envSecret: with service.auth" in refused.stderr

    made = _run(tmp_path / "helm", "template", "mq", _CHART, *_CLUSTER, *named, *more)
    (pods,) = (each for each in yaml.safe_load_all(made) if each and each["kind"] == "StatefulSet")
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    (tmp_path / "deltamq").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "deltamq").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    started = _run(*container["command"], environment={"PATH": path, "HOSTNAME": "mq-3"}).split()
    context = serve_command.make_context("serve", started[1:])
    assert started[0] == "serve"
    assert context.params["brokers"] == ("broker-3-0", "broker-3-1")
    assert context.params["address"] == "https://mq-3.mq-pods:8080"


def _run(
    *command: str | Path, folder: Path | None = None, given: str = "", environment: dict[str, str] | None = None
) -> str:
    """Run a command that must succeed; return what it printed."""
    done = subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True, timeout=1_500, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
