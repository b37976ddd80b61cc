"""Storage of tables: a local disk or an object store behind one interface, with file reuse, trash and host locks."""

from __future__ import annotations

from tables.store.file_pool import PoolingFiles
from tables.store.file_system import Failed
from tables.store.handle_secret import handle_keys
from tables.store.host_lock import HostLocks
from tables.store.local import HEAD, TEMP_PREFIX, LocalStore, OsFiles, make_root
from tables.store.native import NativePool, native_library
from tables.store.object import ObjectStore
from tables.store.publishing import Work, blocking
from tables.store.store import FileMissing, NotDurable, Store, probe
from tables.store.unsynced import Unsynced
from tables.store.waits import waited_s

__all__ = [
    "HEAD",
    "TEMP_PREFIX",
    "Failed",
    "FileMissing",
    "HostLocks",
    "LocalStore",
    "NativePool",
    "NotDurable",
    "ObjectStore",
    "OsFiles",
    "PoolingFiles",
    "Store",
    "Unsynced",
    "Work",
    "blocking",
    "handle_keys",
    "make_root",
    "native_library",
    "probe",
    "waited_s",
]
