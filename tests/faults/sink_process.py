"""A driver of the sink that is killed at a failpoint: `python -m tests.faults.sink_process WAREHOUSE ROWS.. `

It stages and commits batches one after another on a local disk, from a given batch on, as a restarted streaming query
of Spark does: with the rows of a batch in another order each time.
"""

from __future__ import annotations

import random
import sys

from deltamq.tables.store.local import LocalStore
from tests.unit.jobs.sink.sinks import Sink, keyed

ROWS = 60


def main(folder: str, first: int, last: int, seed: int) -> None:
    """Write batches `[first, last)`, each always of the same rows; print each batch that Spark would take as done."""
    sink = Sink(LocalStore(folder))
    shuffled = random.Random(seed)
    for batch in range(first, last):
        names = [f"m{number:06d}" for number in range(batch * ROWS, (batch + 1) * ROWS)]
        shuffled.shuffle(names)
        cut = shuffled.randrange(1, ROWS)
        sink.write(batch, keyed(names[:cut]), keyed(names[cut:]))
        print(batch, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
