"""Releases from before the one that is tested, as they were in git: `releases.tar.xz` has what a start of each needs.

    repository --> git archive of each commit --> the files that a start imports --> releases.tar.xz
                                                  (python -m tests.releases)

Tests start one on a warehouse of today's release, with today's interpreter and packages.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from deltamq.mq.meta.brokers import Host, decide_leave, decide_register
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog

__all__ = ["ARCHIVE", "RELEASES", "START", "Release", "Start", "made_before_features", "started"]

ARCHIVE: Final = Path(__file__).with_name("releases.tar.xz")

#: Serve one warehouse after the other, each in a fork and until a signal, with authentication or open: so a release is
#: imported once. Releases had their folders as packages of these names.
START: Final = """
import json, os, sys
from api.serve import bind, run
from tables.config import load

for line in sys.stdin:
    warehouse, auth, errors = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
        print("process", os.getpid())
        config = load(None, {"warehouse.uri": warehouse, "service.port": 0, "service.auth": auth})
        sys.exit(run(config, bind(config)))
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class Release(NamedTuple):
    """A release before this one."""

    commit: str
    #: How it says that it does not know a feature which is on, as a pattern.
    refusal: str


RELEASES: Final = {
    # the first that knows of features: it keeps every field or stops
    "with-features": Release("d352bff4cbbc718093d6d81d6b23ca3bc371ec9c", "code=feature_unknown .*'(schemas|guarded)'"),
    # passes over fields that it does not know; knows neither disabled principals nor Kafka's partitioner
    "before-features": Release(
        "0a28f45bbeee19b412de70c4447236b464de4ee2",
        "code=meta_event_unknown .*unknown kind '(principal_disabled|feature_on)'",
    ),
}


def made_before_features(warehouse: Path, *, runs: bool = False) -> None:
    """Make a warehouse as a release from before features did, whose process has left it, or `runs`."""
    opened = Warehouse.open(str(warehouse))
    host = Host(id="before", address="http://before", brokers=("broker-a",), renewal=0, load=0)
    meta = MetaLog(opened)
    meta.submit_any(lambda state: decide_register(state.brokers, host))
    if not runs:
        meta.submit_any(lambda state: decide_leave(state.brokers, host.id))
    opened.close()


class Start(NamedTuple):
    """What became of a start."""

    serves: bool
    returncode: int
    stderr: str


@cache
def _server(release: str) -> subprocess.Popen[str]:
    """Unpack a release and import it, once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="deltamq-release-"))
    atexit.register(shutil.rmtree, folder)
    with tarfile.open(ARCHIVE) as archive:
        members = [member for member in archive if member.name.startswith(f"{release}/")]
        archive.extractall(folder, members, filter="data")
    tree = folder / release
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DELTAMQ_")}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", START],
        cwd=tree,
        env=environ | {"PYTHONPATH": str(tree)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def started(release: str, folder: Path, warehouse: Path, *, auth: bool = True) -> Start:
    """Start a release's service on a warehouse, and stop it again; return what it did. Its errors go into `folder`.

    A start that takes longer than a minute is killed.
    """
    server, errors = _server(release), folder / "stderr.txt"
    assert server.stdin is not None and server.stdout is not None
    print(json.dumps([str(warehouse), auth, str(errors)]), file=server.stdin, flush=True)
    pid = int(server.stdout.readline().removeprefix("process "))
    limit = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
    limit.start()
    serves = False
    for line in server.stdout:
        if line.startswith("serving "):
            serves = True
            os.kill(pid, signal.SIGTERM)
        elif line.startswith("ended "):
            limit.cancel()
            return Start(serves, int(line.removeprefix("ended ")), errors.read_text())
    raise RuntimeError(f"{release} did not import: {server.wait()}")
