"""A task of the job `compact` in a process of its own, which a test kills at a failpoint.

    python -m tests.faults.compaction_process WAREHOUSE FAILPOINTS [once]

It prints first offset, end offset and outcome of each range; without `once` it looks for more ranges until killed.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.jobs.upkeep.compact import CompactItem, PlanItem, compact_ranges, plan_partitions
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


def run(conf: Config) -> list[dict[str, object]]:
    """Return the reports of the tasks of one run."""
    (planned,) = plan_partitions(PlanItem(conf, ((REF, _KEEP_MS),)))
    ranges = [(row["start"], row["end"]) for row in planned.to_pylist()]
    return [
        row for one in ranges for batch in compact_ranges(CompactItem(conf, REF, (one,))) for row in batch.to_pylist()
    ]


def main(folder: str, points: str, *once: str) -> None:
    conf = conf_of(folder)
    warehouse_of(conf).open_partition(REF)
    failpoints.arm(points)
    while True:
        for row in run(conf):
            print(json.dumps({"made": row["made"], "rows": row["rows"], "error": row["error"]}), flush=True)
        if once:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
