"""Which run of which streaming query a batch of the sink belongs to, and the look at its checkpoint (SPEC SPARK-24).

The sink is asked only when a batch has rows for it: tasks see the query in the properties of their job, and send it to
the driver with what they staged. So a query that reads no topic claims its checkpoint at the commit of its first batch.
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
        """Return what `to_json` wrote.

        Raises
        ------
        Corrupt
            The value is something else.
        """
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise Corrupt(f"a claim has no batch: {error}", code="claim_corrupt") from error


def current_run() -> StreamRun | None:
    """Return what the task that runs here belongs to; None outside of streams.

    A run is told by the group of its jobs. The caller of a write in `foreachBatch` may set a group of its own: then the
    run is not known, and its description does not have the group.
    """
    context = TaskContext.get()
    if context is None:
        return None
    said = [context.getLocalProperty(name) or "" for name in (QUERY_ID, _RUN_ID, BATCH_ID)]
    query, run, batch = said
    if not all(said) or not batch.isdigit() or run not in (context.getLocalProperty(_DESCRIPTION) or ""):
        return None
    return StreamRun(query, run, int(batch))


def check_claim(store: Store, claimant: Claimant, at: StreamRun) -> None:
    """Claim the checkpoint for the run, or check that its claim counts.

    Raises
    ------
    CheckpointTaken
        Another application goes on from the same checkpoint.
    """
    CheckpointClaims(store, claimant, run=at.run).check(at)
