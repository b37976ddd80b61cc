"""A task of the job `compact` in a process of its own, which a test kills at a failpoint.

    python -m tests.faults.compaction_process WAREHOUSE FAILPOINTS [once]

It prints first offset, end offset and outcome of each range; without `once` it looks for more ranges until killed.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.jobs.upkeep.compact import CompactItem, Done, PlanItem, compact_ranges, plan_partitions
from deltamq.tables import failpoints
from deltamq.tables.config import Config, load
from tests.rows import REF

#: Long enough that no test sees retention.
_KEEP_MS: Final = 10**12
#: Sizes as small as the tests' files.
SETTINGS: Final = {"jobs.compact_target_bytes": 65_536, "log.rollup_bytes_max": 2, "log.rollup_files": 1_000_000}


def conf_of(folder: str) -> Config:
    """Return the settings of a test's job."""
    return load(overrides={"warehouse.uri": folder, **SETTINGS}, environ={})


def run(conf: Config) -> list[Done]:
    """Return the reports of the tasks of one run."""
    plans = plan_partitions(PlanItem(conf, ((REF, _KEEP_MS),)))
    return [compact_ranges(CompactItem(conf, REF, (bounds,))) for plan in plans for bounds in plan.ranges]


def shown(done: Done) -> dict[str, object]:
    """Return what a task did as counts."""
    made = sum(bool(result.removed) for result in done.results)
    return {"made": made, "rows": sum(result.rows for result in done.results), "error": done.error}


def main(folder: str, points: str, *once: str) -> None:
    conf = conf_of(folder)
    warehouse_of(conf).open_partition(REF)
    failpoints.arm(points)
    while True:
        for done in run(conf):
            print(json.dumps(shown(done)), flush=True)
        if once:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
