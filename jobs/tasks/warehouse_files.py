"""Files without what the writers of a warehouse need: the file pool, the probe and the threads."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from deltamq.mq.errors import NotFound
from deltamq.tables.log.warehouse import open_store
from deltamq.tables.store.local import LocalStore, OsFiles, make_root
from deltamq.tables.store.store import Store


def storage(warehouse: str) -> Store:
    """Return the store of a warehouse, or raise `NotFound`; nothing is created or kept open."""
    store = files_at(warehouse)
    if isinstance(store, LocalStore) and not Path(store.uri("")).is_dir():
        raise NotFound(f"there is no warehouse at {store.uri('')}", code="warehouse_not_found", field="warehouse")
    return store


def files_at(uri: str, *, create: bool = False) -> Store:
    """Return the store of a folder or a URL, and make the folder with `create`; nothing is kept open."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return open_store(uri, create=create)
    path = Path(parts.path if parts.scheme else uri).absolute()
    if create:
        make_root(str(path), OsFiles())
    return LocalStore(path)


def delete_unchanged(store: Store, parent: str, since_ms: int) -> None:
    """Delete the folders in `parent` in which no file has changed since this time."""
    for name in store.folders(parent):
        folder = f"{parent}/{name}"
        if max((entry.modified_ms for entry in store.entries(folder)), default=0) < since_ms:
            store.delete_tree(folder)
