"""The job `erase` in a process of its own, which a test kills at a failpoint.

python -m tests.faults.erase_process WAREHOUSE FAILPOINTS
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.jobs.upkeep.erase import erase
from deltamq.tables import failpoints
from deltamq.tables.config import Config, load
from deltamq.tables.ops.erasures import open_erasures


def conf_of(folder: str) -> Config:
    """Return settings with keep times as short as a test."""
    return load(overrides={"warehouse.uri": folder, "log.file_keep_ms": 1, "log.log_keep_ms": 1_000}, environ={})


def run(conf: Config) -> None:
    """Run the job until no request is open."""
    while open_erasures(warehouse_of(conf).store):
        erase(None, conf, datetime(2026, 5, 1, 12, tzinfo=UTC))
        time.sleep(0.05)


def main(folder: str, points: str) -> None:
    conf = conf_of(folder)
    warehouse_of(conf)
    failpoints.arm(points)
    run(conf)


if __name__ == "__main__":
    main(*sys.argv[1:])
