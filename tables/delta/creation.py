"""Creation of a Delta table: the first process to put version 0 of its log creates it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import commit_name, encode_create
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.store.store import Store


def create_table(
    store: Store,
    folder: str,
    *,
    schema: str,
    name: str,
    configuration: Mapping[str, str],
    protocol: Mapping[str, object],
    now_ms: int,
    table_id: str | None = None,
    transactions: Mapping[str, int] | None = None,
    is_new: bool = False,
) -> None:
    """Create the table in `folder`, which has no log; if several processes do so, the first one's table counts.

    Parameters
    ----------
    schema
        The table's columns, as Delta's JSON.
    protocol
        Delta's protocol action: `MESSAGE_PROTOCOL` or `UNGUARDED_PROTOCOL`.
    transactions
        The versions of applications that the table begins with.
    is_new
        Whether the folder is known to have no data.

    Raises
    ------
    Corrupt
        The folder has data: the log of an earlier table is gone, and a new one would hide that data.
    """
    if not is_new:
        check_no_data(store, folder)
    data = encode_create(
        table_id=table_id or str(uuid.uuid4()),
        name=name,
        schema=schema,
        configuration=configuration,
        protocol=protocol,
        now_ms=now_ms,
        transactions=transactions or {},
    )
    store.put_if_absent(f"{folder}/{LOG_FOLDER}/{commit_name(0)}", data, durable=True)


def check_no_data(store: Store, folder: str) -> None:
    """Raise `Corrupt` if a folder without a log has data."""
    for entry in store.entries(folder):
        if entry.name.endswith(".parquet"):
            # Another process may have made the table, and appended to it, since the caller saw no log.
            if any(commit.name.endswith(".json") for commit in store.entries(f"{folder}/{LOG_FOLDER}")):
                return
            raise Corrupt(f"{folder} has data ({entry.name}) but no log; restore its {LOG_FOLDER} folder")
