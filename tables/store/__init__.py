"""Storage of tables: a local disk or an object store behind one interface, with file reuse, trash and host locks."""

from __future__ import annotations

from deltamq.tables.store.file_pool import PoolingFiles
from deltamq.tables.store.file_system import Failed
from deltamq.tables.store.handle_secret import handle_keys
from deltamq.tables.store.host_lock import HostLocks
from deltamq.tables.store.local import HEAD, TEMP_PREFIX, LocalStore, OsFiles, make_root
from deltamq.tables.store.native import NativePool, native_library
from deltamq.tables.store.object import ObjectStore
from deltamq.tables.store.publishing import Work, blocking
from deltamq.tables.store.store import FileMissing, NotDurable, Store, probe
from deltamq.tables.store.unsynced import Unsynced
from deltamq.tables.store.waits import waited_s

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
