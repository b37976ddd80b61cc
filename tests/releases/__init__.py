"""Releases from before the one that is tested, as they were in git: `releases.tar.xz` has what a start of each needs.

    repository --> git archive of each commit --> the files that a start imports --> releases.tar.xz
                                                  (python -m tests.releases)

Tests start one on a warehouse of today's release, with today's interpreter and packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["ARCHIVE", "RELEASES", "START", "Release", "started"]

ARCHIVE: Final = Path(__file__).with_name("releases.tar.xz")

#: Serve a warehouse until a signal, with authentication. Releases had their folders as packages of these names.
START: Final = """
import sys
from api.serve import bind, run
from tables.config import load

config = load(None, {"warehouse.uri": sys.argv[1], "service.port": 0, "service.auth": True})
sys.exit(run(config, bind(config)))
"""


class Release(NamedTuple):
    """A release before this one."""

    commit: str
    #: How it says that it does not know a feature which is on, as a pattern.
    refusal: str


RELEASES: Final = {
    # the first that knows of features: it keeps every field or stops
    "with-features": Release("d352bff4cbbc718093d6d81d6b23ca3bc371ec9c", "code=feature_unknown .*'schemas'"),
    # passes over fields that it does not know; knows neither disabled principals nor Kafka's partitioner
    "before-features": Release(
        "0a28f45bbeee19b412de70c4447236b464de4ee2",
        "code=meta_event_unknown .*unknown kind '(principal_disabled|feature_on)'",
    ),
}


def started(release: str, folder: Path, warehouse: Path) -> subprocess.CompletedProcess[str]:
    """Unpack a release into `folder` and start its service on a warehouse; return how it ended, within a minute."""
    with tarfile.open(ARCHIVE) as archive:
        members = [member for member in archive if member.name.startswith(f"{release}/")]
        archive.extractall(folder, members, filter="data")
    tree = folder / release
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DELTAMQ_")}
    return subprocess.run(
        [sys.executable, "-c", START, str(warehouse)],
        cwd=tree,
        env=environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
