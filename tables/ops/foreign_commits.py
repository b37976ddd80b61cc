"""What a repair takes back of another engine's commits, told before it is done (SPEC TABLE-4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from deltamq.mq.errors import Corrupt
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.tables.delta.actions import DataFile, commit_name
from deltamq.tables.delta.foreign import ForeignCommit
from deltamq.tables.delta.snapshot import Snapshot, log_versions, read_commit
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.store.store import FileMissing, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """The commits behind the last version of ours, all of them of other engines."""

    versions: tuple[int, ...]
    text: str
    #: The first offset whose data file the other engine deleted, and the one after the last; None if all are there.
    lost_from: int | None
    lost_to: int | None


def find_taken_back(store: Store, folder: str, good: Snapshot) -> TakenBack | None:
    """Return the foreign commits that follow a consistent state; None if one of them is ours, or damaged."""
    versions = [v for v in log_versions(store, folder)[0] if v > good.version]
    authors = []
    removed: set[str] = set()
    for version in versions:
        try:
            commit = read_commit(store, folder, version, good.table_id)
        except ForeignCommit as error:
            authors.append(_author(error))
        except (Corrupt, FileMissing):
            return None
        else:
            if not commit.author:
                return None
            authors.append(commit.author)
        removed |= _removes(store.read(f"{folder}/{LOG_FOLDER}/{commit_name(version)}").to_pybytes())
    if not versions:
        return None
    sizes = {entry.name: entry.size for entry in store.entries(folder)}
    lost = [file for file in good.files if sizes.get(file.path) != file.size]
    hidden = [file for file in good.files if file.path in removed and file not in lost]
    return TakenBack(
        versions=tuple(versions),
        text=_text(versions, authors, hidden, lost, good.version),
        lost_from=lost[0].start if lost else None,
        lost_to=lost[-1].end if lost else None,
    )


def _author(error: ForeignCommit) -> str:
    """Return who made a commit and what it does, out of the error's sentence."""
    return error.detail.partition(": ")[2].partition("; ")[0]


def _removes(text: bytes) -> set[str]:
    lines = [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    return {str(line["remove"].get("path")) for line in lines if isinstance(line.get("remove"), dict)}


def _text(
    versions: Sequence[int], authors: Sequence[str], hidden: Sequence[DataFile], lost: Sequence[DataFile], stays: int
) -> str:
    told = "; ".join(f"version {version}: {author}" for version, author in zip(versions, authors, strict=True))
    text = f"take back what other engines did after version {stays} ({told})"
    if hidden:
        text += f"; offsets {_ranges(hidden)}, which they removed or changed, are again as they were sent"
    if lost:
        return f"{text}; offsets {_ranges(lost)} are lost: their data files are gone"
    return f"{text}; nothing that was acknowledged is lost"


def _ranges(files: Sequence[DataFile]) -> str:
    return ", ".join(f"{low} to {high - 1}" for low, high in OffsetRanges((f.start, f.end) for f in files))
