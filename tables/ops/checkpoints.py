"""The two files of each log checkpoint: which of them are ours, and what other readers start from (SPEC TABLE-3)."""

from __future__ import annotations

from collections.abc import Mapping

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.checkpoint import ForeignCheckpoint, checkpoint_names, hint_key, read_checkpoint, write_hint
from deltamq.tables.delta.snapshot import check_checkpoint_file, log_versions
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.store.store import FileMissing, Store

#: What is wrong with a file of a checkpoint; None if nothing is.
Fault = Corrupt | FileMissing | None


def checkpoint_keys(folder: str, version: int) -> tuple[str, str]:
    """Return the keys of our own copy of a checkpoint, and of the one for other readers."""
    own, shared = (f"{folder}/{LOG_FOLDER}/{name}" for name in checkpoint_names(version))
    return own, shared


def checkpoint_faults(store: Store, folder: str, version: int) -> Mapping[str, Fault]:
    """Return what is wrong with each file of a checkpoint, our own copy first."""
    return {key: _fault(store, folder, key, version) for key in checkpoint_keys(folder, version)}


def _fault(store: Store, folder: str, key: str, version: int) -> Fault:
    try:
        check_checkpoint_file(store, folder, key, version)
    except (Corrupt, FileMissing) as error:
        return error
    return None


def own_checkpoints(store: Store, folder: str) -> list[int]:
    """Return the versions of our checkpoints, ascending, damaged ones included."""
    return [v for v in log_versions(store, folder)[1] if _is_ours(store, folder, v)]


def _is_ours(store: Store, folder: str, version: int) -> bool:
    own, shared = checkpoint_keys(folder, version)
    return store.exists(own) or not isinstance(_fault(store, folder, shared, version), ForeignCheckpoint)


def newest_checkpoint(store: Store, folder: str) -> int:
    """Return the version of our newest checkpoint, -1 if there is none."""
    return max(own_checkpoints(store, folder), default=-1)


def wrong_for_others(store: Store, folder: str) -> int | None:
    """Return the newest version whose file for other readers is not ours, or missing; None if there is none."""
    versions = log_versions(store, folder)[1]
    newest = newest_checkpoint(store, folder)
    for version in reversed(versions):
        own, shared = checkpoint_faults(store, folder, version).values()
        if isinstance(shared, ForeignCheckpoint) or (own is None and isinstance(shared, Corrupt)):
            return version
        if own is None and isinstance(shared, FileMissing) and version == newest:
            return version
    return None


def write_own_hint(store: Store, folder: str) -> None:
    """Make the hint for other readers name our newest checkpoint; remove it if there is none."""
    newest = newest_checkpoint(store, folder)
    if newest < 0:
        store.delete(hint_key(folder))
    else:
        write_hint(store, folder, read_checkpoint(store, folder, newest))
