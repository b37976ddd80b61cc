"""The query and run of a sink's batch, and the claim on the query's checkpoint (SPEC SPARK-24).

Spark calls the sink only when a batch has rows for it: tasks see the query in the properties of their job, and send it
to the driver with their staged rows. So a query that reads no topic claims its checkpoint at the commit of its first
batch.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from pyspark import TaskContext

from deltamq.jobs.tasks.checkpoint_claims import CheckpointClaims, Claimant
from deltamq.mq.errors import Corrupt
from deltamq.tables.store.store import Store

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"


class StreamRun(msgspec.Struct, frozen=True):
    """A batch in one run of a query: a position in the query's checkpoint."""

    query: str
    run: str
    batch: int

    @property
    def stream(self) -> str:
        """The name of the query's claims."""
        return f"query-{self.query}"

    def is_before(self, other: StreamRun) -> bool:
        """Return whether the other batch comes later."""
        return self.batch < other.batch

    def to_json(self) -> dict[str, object]:
        """Return the stored form."""
        return msgspec.structs.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> StreamRun:
        """Read the stored form; raise `Corrupt` for anything else."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise Corrupt(f"a claim has no batch: {error}", code="claim_corrupt") from error


def current_run() -> StreamRun | None:
    """Return the run of the task that runs here; None outside of streams.

    The group of a task's job identifies the run. The caller of a write in `foreachBatch` may set another group: then
    the run is unknown, and the job's description does not have the group.
    """
    context = TaskContext.get()
    if context is None:
        return None
    properties = [context.getLocalProperty(name) or "" for name in (QUERY_ID, _RUN_ID, BATCH_ID)]
    query, run, batch = properties
    if not all(properties) or not batch.isdigit() or run not in (context.getLocalProperty(_DESCRIPTION) or ""):
        return None
    return StreamRun(query, run, int(batch))


def check_claim(store: Store, claimant: Claimant, at: StreamRun) -> None:
    """Claim the checkpoint for the run; raise `CheckpointTaken` if another application goes on from it."""
    CheckpointClaims(store, claimant, run=at.run).check(at)
