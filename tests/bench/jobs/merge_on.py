"""Records a second that the merge job folds on a given master, in a process that does nothing else.

python -m tests.bench.jobs.merge_on WAREHOUSE MASTER      the rates of some runs, as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from deltamq.jobs.merge.merge import Merger
from deltamq.jobs.spark.session import spark_session
from tests.bench.jobs.merge import BACKLOG_RECORDS, WARMUP_RUNS, Logs, run_once

#: A minute of records, in two batches.
_RECORDS: Final = 2 * BACKLOG_RECORDS
_RUNS: Final = 3


def main(warehouse: str, master: str) -> None:
    """Warm up, then measure some backlogs."""
    logs = Logs(Path(warehouse))
    settings: dict[str, Any] = {"spark.master": master}
    spark = spark_session("merge-on", warehouse=warehouse, **settings)
    merger = Merger(logs.warehouse, logs.conf)
    for _ in range(WARMUP_RUNS):
        run_once(merger, spark, logs, BACKLOG_RECORDS)
    rates = [run_once(merger, spark, logs, _RECORDS)["rate"] for _ in range(_RUNS)]
    spark.stop()
    print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
