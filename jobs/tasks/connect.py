"""Sessions of Spark Connect: clients of a server, with no JVM and no Spark context in this process."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_connect(spark: object) -> bool:
    """Return whether a session is a client of Spark Connect."""
    # imported here, because it takes longer than `deltamq jobs list` should
    from pyspark.sql import SparkSession

    return not isinstance(spark, SparkSession)


def cloned_session(spark: SparkSession) -> SparkSession:
    """Return a new session of a Connect client, with the sources and code of `spark` and with its own settings."""
    remote: Any = spark
    cloned: SparkSession = remote.cloneSession()
    return closed_at_exit(cloned)


def local_checkpoint(frame: DataFrame) -> DataFrame:
    """Return a frame that the executors keep once it is evaluated, bound to the session of `frame`.

    Spark Connect's client would bind it to the thread's active session, where the server does not find the frame.
    """
    if not is_connect(frame.sparkSession):
        return frame.localCheckpoint(eager=False)
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    remote: Any = RemoteSession
    active, own = remote._active_session, frame.sparkSession
    before = getattr(active, "session", None)
    active.session = own
    try:
        return frame.localCheckpoint(eager=False)
    finally:
        active.session = before


def closed_at_exit(spark: SparkSession) -> SparkSession:
    """Return a Connect session whose channel is closed before the interpreter ends its threads.

    Otherwise the session's own finalizer closes it, waits for a thread that has ended, and the process never ends.
    """
    remote: Any = spark
    atexit.register(remote.client.close)
    return spark
