"""A warehouse's files for read-only use: without the file pool, the probe and the threads that writers need."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from deltamq.mq.errors import NotFound
from deltamq.tables.log.warehouse import open_store
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import Store


def storage(warehouse: str) -> Store:
    """Return the store of a warehouse that exists; nothing is created or kept open.

    Raises
    ------
    NotFound
        The folder does not exist.
    """
    parts = urlsplit(warehouse)
    if parts.scheme not in ("", "file"):
        return open_store(warehouse)
    path = Path(parts.path if parts.scheme else warehouse).absolute()
    if not path.is_dir():
        raise NotFound(f"there is no warehouse at {path}", code="warehouse_not_found", field="warehouse")
    return LocalStore(path)
