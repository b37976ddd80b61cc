"""Repairs of a damaged partition, and their cost. Stop everything that writes to the warehouse first.

    PUT_BACK          the newest commit lost its name, but `.head` still holds it        nothing is lost
    DROP_CHECKPOINT   a checkpoint is damaged, the commits since the one before are not   nothing is lost
    WRITE_CHECKPOINT  the copy for other readers is damaged, or another engine's          nothing is lost
    WRITE_HINT        `_last_checkpoint` is wrong: other readers need it                 nothing is lost
    TAKE_BACK         another engine changed rows or columns: undo that                   it says whether anything is
    REFILL            commits are gone, but the data files have what they said            nothing is lost
    CUT               the log is torn: go back to its last consistent version            later versions are lost

A cut may be needed after a power cut in the middle of `Flush.ASYNC` appends. It is only made on request, it says which
offsets it gives up (they will be given to other messages), and the files that it takes out of the table are kept beside
it, in a folder `_cut-<time>`. A repair says what it takes back of other engines' commits before it does so
(SPEC TABLE-4).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

from deltamq.mq.errors import Corrupt, Unprocessable
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.tables.delta.actions import DataFile, commit_name
from deltamq.tables.delta.checkpoint import hint_key, hint_version, write_checkpoint
from deltamq.tables.delta.foreign import ForeignCommit
from deltamq.tables.delta.head import can_put_back, head_key, put_back, read_head
from deltamq.tables.delta.snapshot import (
    CommitLost,
    PartitionNotFound,
    Snapshot,
    load,
    log_versions,
    read_commit,
    start,
)
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.checkpoints import (
    checkpoint_faults,
    checkpoint_keys,
    newest_checkpoint,
    own_checkpoints,
    write_own_hint,
    wrong_for_others,
)
from deltamq.tables.ops.refill import commit_if_whole, find_refill, is_damaged
from deltamq.tables.paths import LOG_FOLDER, PartitionRef
from deltamq.tables.store.store import FileMissing, Store


class RepairKind(enum.Enum):
    """The kinds of repair; the module says what each does."""

    PUT_BACK = "put_back"
    DROP_CHECKPOINT = "drop_checkpoint"
    WRITE_CHECKPOINT = "write_checkpoint"
    WRITE_HINT = "write_hint"
    TAKE_BACK = "take_back"
    REFILL = "refill"
    CUT = "cut"


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """One repair of one partition: `text` describes it in a sentence.

    `version` is the version that is put back, dropped, written or named, or the last one that stays. `lost_from` is
    the first offset that is given up, `lost_to` the offset after the last one, None if it is not known.
    """

    ref: PartitionRef
    kind: RepairKind
    version: int
    text: str
    lost_from: int | None = None
    lost_to: int | None = None

    @property
    def loses(self) -> bool:
        """Whether the repair gives up messages."""
        return self.lost_from is not None

    @property
    def question(self) -> str | None:
        """What to ask before the repair, which takes something away or brings it back; None if it does neither."""
        if self.loses:
            return "Give these offsets up?"
        return "Take this back?" if self.kind is RepairKind.TAKE_BACK else None


def find_repair(warehouse: Warehouse, ref: PartitionRef) -> Repair | None:
    """Return the repair that the partition needs; None if it needs none, or there is none for its damage."""
    store, folder = warehouse.store, ref.folder
    try:
        snapshot = load(store, folder)
    except PartitionNotFound:
        return None
    except CommitLost as lost:
        head = read_head(store, folder, lost.table_id)
        if head is not None and can_put_back(store, folder, head[0], lost.version):
            text = f"put version {lost.version} back from {head_key(folder)}"
            return Repair(ref=ref, kind=RepairKind.PUT_BACK, version=lost.version, text=text)
        return _find_refill(store, ref) or _find_cut(store, ref)
    except ForeignCommit:
        return _find_taken_back(store, ref)
    except Corrupt:
        return _find_checkpoint_to_drop(store, ref) or _find_refill(store, ref) or _find_cut(store, ref)
    torn = _torn_version(store, folder, snapshot)
    if torn is not None:
        return _find_cut(store, ref, before=torn)
    return _find_checkpoint_to_write(store, ref) or _find_hint(store, ref)


def repair(warehouse: Warehouse, wanted: Repair) -> list[str]:
    """Carry out a repair; return the files that were taken out of the table, each with the place where it is kept now.

    Raises
    ------
    Unprocessable
        The partition is no longer in the state that the repair was found for.
    """
    if find_repair(warehouse, wanted.ref) != wanted:
        raise Unprocessable(f"{wanted.ref.folder} has changed; stop its writers, and verify it again", code="changed")
    store, folder = warehouse.store, wanted.ref.folder
    aside = f"{folder}/_cut-{warehouse.clock.wall_us() // 1000}"
    if wanted.kind is RepairKind.PUT_BACK:
        table_id = load_before(store, folder).table_id
        if not put_back(store, folder, table_id, version=wanted.version):
            raise Unprocessable(f"{head_key(folder)} does not hold all of version {wanted.version}", code="changed")
        return []
    moved: list[str] = []
    if wanted.kind is RepairKind.DROP_CHECKPOINT:
        moved = _set_aside(store, checkpoint_keys(folder, wanted.version), aside)
    elif wanted.kind is RepairKind.WRITE_CHECKPOINT:
        moved = _write_checkpoint(store, folder, wanted.version, aside)
    elif wanted.kind is RepairKind.REFILL:
        moved = _refill(warehouse, folder, aside)
    elif wanted.kind is RepairKind.TAKE_BACK:
        moved = _set_aside(store, _keys_of_others_after(store, folder, wanted.version), aside)
    elif wanted.kind is RepairKind.CUT:
        moved = _set_aside(store, list(_keys_after(store, folder, wanted.version)), aside)
    write_own_hint(store, folder)
    return moved


def load_before(store: Store, folder: str) -> Snapshot:
    """Return the last consistent state of a log that can be reached from its newest readable checkpoint."""
    for base in [*reversed(log_versions(store, folder)[1]), -1]:
        try:
            snapshot = start(store, folder, base)
        except (Corrupt, FileMissing):
            continue
        while (commit := commit_if_whole(store, folder, snapshot.version + 1, snapshot.table_id)) is not None:
            try:
                snapshot.apply(commit)
            except Corrupt:
                break
        return snapshot
    raise Corrupt(f"{folder}: neither a checkpoint nor version 0 can be read")


def _torn_version(store: Store, folder: str, snapshot: Snapshot) -> int | None:
    """Return the first unsynced version after the checkpoint whose data is damaged or missing; None if none is."""
    live = {f.path for f in snapshot.files}
    for version in range(snapshot.checkpoint_version + 1, snapshot.version + 1):
        commit = commit_if_whole(store, folder, version, snapshot.table_id) if version else None
        if commit is None or commit.flushed:
            continue
        if is_damaged(store, folder, (file for file in commit.adds if file.path in live)):
            return version
    return None


def _find_cut(store: Store, ref: PartitionRef, before: int | None = None) -> Repair | None:
    try:
        good = load_before(store, ref.folder)
    except Corrupt:
        return None
    commits, checkpoints = log_versions(store, ref.folder)[0], own_checkpoints(store, ref.folder)
    stays = good.version if before is None else before - 1
    if checkpoints and stays < checkpoints[-1]:
        return None  # a checkpoint's commits were synced: this is no torn tail, and a cut would lose the checkpoint
    lost_from, lost_to, durable = good.end_offset, None, False
    for version in range(stays + 1, max([*commits, stays]) + 1):
        commit = commit_if_whole(store, ref.folder, version, good.table_id) if version in commits else None
        if commit is not None and commit.end_offset is not None:
            lost_to = commit.end_offset
            lost_from = min([lost_from, *(f.start for f in commit.adds)])
        durable = durable or (commit is not None and commit.flushed)
    promised = "messages that were acknowledged as durable are among them" if durable else "none was said to be durable"
    until = f"offsets {lost_from} to {lost_to - 1}" if lost_to is not None else f"offsets from {lost_from} on"
    return Repair(
        ref=ref,
        kind=RepairKind.CUT,
        version=stays,
        text=f"cut the log after version {stays}; {until} are lost ({promised}) and will be given to new messages",
        lost_from=lost_from,
        lost_to=lost_to,
    )


def _find_checkpoint_to_drop(store: Store, ref: PartitionRef) -> Repair | None:
    """Return the repair that drops the newest checkpoint, if it is damaged and all commits can be read without it."""
    version = newest_checkpoint(store, ref.folder)
    if version < 0 or None in checkpoint_faults(store, ref.folder, version).values():
        return None
    try:
        reached = load_before(store, ref.folder).version
    except Corrupt:
        return None
    if reached < max([version, *log_versions(store, ref.folder)[0]]):
        return None
    text = f"take out the damaged checkpoint of version {version}; the commits before it are still there"
    return Repair(ref=ref, kind=RepairKind.DROP_CHECKPOINT, version=version, text=text)


def _find_checkpoint_to_write(store: Store, ref: PartitionRef) -> Repair | None:
    version = wrong_for_others(store, ref.folder)
    if version is None:
        return None
    own, shared = checkpoint_keys(ref.folder, version)
    text = f"write {shared} again from {own}" if store.exists(own) else f"take out {shared}, which is another engine's"
    return Repair(ref=ref, kind=RepairKind.WRITE_CHECKPOINT, version=version, text=f"{text}; nothing is lost")


def _write_checkpoint(store: Store, folder: str, version: int, aside: str) -> list[str]:
    own, shared = checkpoint_keys(folder, version)
    moved = _set_aside(store, [shared], aside)
    if checkpoint_faults(store, folder, version)[own] is None:
        store.replace(shared, store.read(own))
    return moved


def _find_taken_back(store: Store, ref: PartitionRef) -> Repair | None:
    try:
        good = load_before(store, ref.folder)
    except Corrupt:
        return None
    taken_back = find_taken_back(store, ref.folder, good)
    if taken_back is None:
        return None
    return Repair(
        ref=ref,
        kind=RepairKind.TAKE_BACK,
        version=good.version,
        text=taken_back.text,
        lost_from=taken_back.lost_from,
        lost_to=taken_back.lost_to,
    )


def _keys_of_others_after(store: Store, folder: str, version: int) -> list[str]:
    """Return what other engines added to the log after a version, newest first: the table stays closed until the end.

    Their commits, Spark's checksum files, and their checkpoints; the data files that they added are swept in time.
    """
    log = f"{folder}/{LOG_FOLDER}"
    names = [name for name in store.names(log) if name[:20].isdigit() and int(name[:20]) > version]
    return [f"{log}/{name}" for name in sorted(names, reverse=True)]


def _find_refill(store: Store, ref: PartitionRef) -> Repair | None:
    try:
        refill = find_refill(store, ref.folder, load_before(store, ref.folder))
    except Corrupt:
        return None
    if refill is None:
        return None
    state = refill.checkpoint
    versions = ", ".join(str(version) for version in refill.missing)
    text = f"put the log together again from its data files, as the commits {versions} are gone or damaged"
    if refill.unnamed:
        text += f"; {len(refill.unnamed)} files that no other commit names hold their messages"
    else:
        text += "; they held no messages"
    if state.end_offset > refill.begins_at:
        text += f"; offsets {refill.begins_at} to {state.end_offset - 1} are there"
    return Repair(ref=ref, kind=RepairKind.REFILL, version=state.version, text=text)


def _refill(warehouse: Warehouse, folder: str, aside: str) -> list[str]:
    store = warehouse.store
    refill = find_refill(store, folder, load_before(store, folder))
    assert refill is not None, "the repair was found a moment ago"
    write_checkpoint(store, folder, refill.checkpoint, now_ms=warehouse.clock.wall_us() // 1000)
    return _set_aside(store, [f"{folder}/{LOG_FOLDER}/{commit_name(v)}" for v in refill.missing], aside)


def _find_hint(store: Store, ref: PartitionRef) -> Repair | None:
    newest = newest_checkpoint(store, ref.folder)
    try:
        named = hint_version(store, ref.folder)
    except Corrupt:
        named = None
    else:
        if named is not None or newest < 0:
            return None
    key = hint_key(ref.folder)
    text = f"make {key} name the checkpoint of version {newest}" if newest >= 0 else f"remove {key}: it names nothing"
    return Repair(ref=ref, kind=RepairKind.WRITE_HINT, version=newest, text=text)


def _keys_after(store: Store, folder: str, version: int) -> Iterator[str]:
    """Yield the files that a cut takes out, commits before their data, so that the table stays closed until the end."""
    log = f"{folder}/{LOG_FOLDER}"
    commits, _ = log_versions(store, folder)
    table_id = load_before(store, folder).table_id
    yield head_key(folder)
    data = []
    for after in sorted((v for v in commits if v > version), reverse=True):
        commit = commit_if_whole(store, folder, after, table_id)
        data += [f"{folder}/{f.path}" for f in commit.adds] if commit else []
        yield f"{log}/{commit_name(after)}"
    yield from data


def _set_aside(store: Store, keys: Sequence[str], folder: str) -> list[str]:
    moved = []
    for key in keys:
        kept = f"{folder}/{key.rpartition('/')[2]}"
        try:
            store.put(kept, store.read(key), durable=True)
        except FileMissing:
            continue
        store.delete(key)
        moved.append(f"{key} -> {kept}")
    return moved


class TakenBack(msgspec.Struct, frozen=True, kw_only=True):
    """The commits of other engines behind the last version of ours."""

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
    changes = "; ".join(f"version {version}: {author}" for version, author in zip(versions, authors, strict=True))
    text = f"take back what other engines did after version {stays} ({changes})"
    if hidden:
        text += f"; offsets {_ranges(hidden)}, which they removed or changed, are again as they were sent"
    if lost:
        return f"{text}; offsets {_ranges(lost)} are lost: their data files are gone"
    return f"{text}; nothing that was acknowledged is lost"


def _ranges(files: Sequence[DataFile]) -> str:
    return ", ".join(f"{low} to {high - 1}" for low, high in OffsetRanges((f.start, f.end) for f in files))
