"""One batch of the merge job on its way to its MERGE: what it covers, and what it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jobs.merge.log_spans import LogSpan
from jobs.tasks import is_connect, local_checkpoint
from mq.meta import Meta

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the source of a MERGE is made of."""

    session: SparkSession
    #: Where tasks open the warehouse.
    warehouse: str
    #: Where Spark reads the table that is merged into.
    location: str
    #: What the logs have for it.
    spans: Sequence[LogSpan]
    #: Read after the end of the spans was known: a group or topic that they are about and that is not there has ended.
    meta: Meta
    now: datetime
    #: Whether rows that may be forgotten are looked for.
    clean: bool
    #: Whether something may have ended, a topic, group or epoch, so that rows that are not finished may be forgotten.
    ended: bool
    #: How long a checkpoint may be in the service's memory alone.
    stay_buffer_ms: int
    share_records: int
    span_records_max: int
    #: Whether rows of several logs may be about the same key, which only a shuffle puts together.
    mixed: bool = False
    _kept: list[DataFrame] = field(default_factory=list)

    @property
    def now_ms(self) -> int:
        """The time of the run in milliseconds."""
        return int(self.now.timestamp() * 1000)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Have the executors keep what a DataFrame holds once it is evaluated, until the batch is released.

        Delta refuses a source of a MERGE that is cached, since it could be evaluated anew in the middle; this cannot.
        """
        kept = local_checkpoint(frame)
        self._kept.append(kept)
        return kept

    def release(self) -> None:
        """Let go of what is kept; a context that died holds nothing, and why it died is told elsewhere."""
        while self._kept:
            kept: Any = self._kept.pop()
            # Over Spark Connect the server lets go when the object is gone here.
            if not is_connect(self.session):
                with suppress(Exception):
                    kept._jdf.queryExecution().logical().rdd().unpersist(False)
