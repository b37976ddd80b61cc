"""Damaged files: found before a wrong byte or offset is served, and named by `verify` (fault F6).

A table with everything in it (live files rolled up and not, commits above and below a checkpoint, two checkpoints, the
hint, `.head`, a second partition) is copied, one file of it is damaged, and a process opens the copy, reads all, and
appends. There are two outcomes, and no third: it refuses and says `Corrupt`, or all that it serves is what was stored.
Either way `verify` has named the damaged file before, unless what is left is a state that the table may be in (a
deleted file that clean-up would have deleted, too).
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from deltamq.mq.errors import Corrupt
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import LogSettings
from tests.rows import REF, all_bodies, batch
from tests.set_clock import SetClock

OTHER: Final = PartitionRef(Space.TOPICS, "orders", "orders@broker-b")
SETTINGS: Final = LogSettings(rollup_files=4, checkpoint_commits=6, log_keep_ms=9_000, row_group_rows=3)
LOG: Final = f"{REF.folder}/_delta_log"
Damage = Callable[[Path, random.Random], None]


class Original(msgspec.Struct, frozen=True):
    """The undamaged warehouse and what it holds."""

    folder: Path
    bodies: tuple[bytes, ...]
    live: tuple[str, ...]
    checkpoints: tuple[int, ...]
    commits: tuple[int, ...]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    folder = tmp_path_factory.mktemp("original")
    clock = SetClock()
    warehouse = Warehouse.open(str(folder), settings=SETTINGS, clock=clock)
    for ref in (OTHER, REF):
        log = warehouse.create(ref)
        for i in range(22):
            bodies = [f"{ref.name} {i} {j} ".encode() + bytes([i]) * 50 for j in range(1 + i % 2)]
            log.append([batch(*bodies, producer="p", seq=i)])
            log.maintain()
            clock.advance_ms(1_000)
    found = Original(
        folder,
        tuple(all_bodies(log)),
        tuple(f.path for f in log.files),
        tuple(_versions(folder, ".checkpoint.parquet")),
        tuple(_versions(folder, ".json")),
    )
    warehouse.close()
    assert len(found.checkpoints) >= 2 and len(found.live) >= 3
    assert found.commits[0] < found.checkpoints[-1] < found.commits[-1] - 1
    return found


def _versions(folder: Path, suffix: str) -> list[int]:
    return sorted(int(p.name[:20]) for p in (folder / LOG).iterdir() if p.name.endswith(suffix) and p.name[0] == "0")


def _copy(original: Original, to: Path) -> Path:
    """A copy in which `.head` is again a second name of the newest commit, not a file of its own."""
    shutil.copytree(original.folder, to, ignore=shutil.ignore_patterns(".pool-*"))
    head = to / LOG / ".head"
    head.unlink()
    os.link(to / LOG / f"{original.commits[-1]:020d}.json", head)
    return to


# What is done to a file, in place: a second name sees it, too.


def _truncate_to_nothing(path: Path, drawn: random.Random) -> None:
    os.truncate(path, 0)


def _truncate_to_half(path: Path, drawn: random.Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_one_byte(path: Path, drawn: random.Random) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _delete(path: Path, drawn: random.Random) -> None:
    path.unlink()


def _flip_one_bit(path: Path, drawn: random.Random) -> None:
    at = drawn.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << drawn.randrange(8)]))


def _zero_a_block(path: Path, drawn: random.Random) -> None:
    size = path.stat().st_size
    at = drawn.randrange(max(1, size - 64))
    with path.open("r+b") as file:
        before = file.read()[at : at + 64]
        if before.strip(b"\0"):
            file.seek(at)
            file.write(bytes(len(before)))
        else:
            file.seek(0)
            file.write(b"\xff")


DAMAGES: Final = [
    _truncate_to_nothing,
    _truncate_to_half,
    _cut_one_byte,
    _delete,
    _flip_one_bit,
    _zero_a_block,
]


def _targets(original: Original) -> dict[str, str]:
    """The kinds of files, one of each, relative to the warehouse."""
    base = original.checkpoints[-1]
    return {
        "first data file": f"{REF.folder}/{original.live[0]}",
        "last data file": f"{REF.folder}/{original.live[-1]}",
        "last commit": f"{LOG}/{original.commits[-1]:020d}.json",
        "middle commit": f"{LOG}/{base + 1:020d}.json",
        "covered commit": f"{LOG}/{base - 1:020d}.json",
        "newest checkpoint": f"{LOG}/{base:020d}.checkpoint.parquet",
        "own checkpoint": f"{LOG}/.checkpoint-{base:020d}",
        "older checkpoint": f"{LOG}/{original.checkpoints[-2]:020d}.checkpoint.parquet",
        "hint": f"{LOG}/_last_checkpoint",
        "head": f"{LOG}/.head",
    }


#: Without these files the table is as sound as with them.
MAY_BE_ABSENT: Final = {"covered commit", "own checkpoint", "older checkpoint", "head"}
TARGETS: Final = [
    "first data file",
    "last data file",
    "last commit",
    "middle commit",
    "covered commit",
    "newest checkpoint",
    "own checkpoint",
    "older checkpoint",
    "hint",
    "head",
]


def _judge(original: Original, folder: Path, damaged: set[str], *, must_name: bool) -> bool:
    """Verify, open, read, append; True if the partition refused."""
    warehouse = Warehouse.open(str(folder), settings=SETTINGS, clock=SetClock())
    try:
        named = {f.file for f in verify(warehouse) if f.gravity is not Gravity.NOTE}
        if must_name:
            assert named & damaged, f"verify named {named or 'nothing'}, not {damaged}"
        _check_other(warehouse, damaged)
        try:
            log = warehouse.open_partition(REF)
            _read_all(original, log)
            _append_one(original, log)
        except Corrupt as error:
            assert "orders@broker-a" in error.detail
            return True
        return False
    finally:
        warehouse.close()


def _read_all(original: Original, log: PartitionLog) -> None:
    """Every answer that comes at all is right."""
    assert log.end_offset == len(original.bodies)
    for start in range(0, len(original.bodies), 5):
        rows = log.read(start, max_messages=5, max_bytes=1 << 20).rows
        assert rows.column("offset").to_pylist() == list(range(start, start + rows.num_rows))
        assert tuple(rows.column("body").to_pylist()) == original.bodies[start : start + rows.num_rows]


def _append_one(original: Original, log: PartitionLog) -> None:
    assert log.append([batch(b"new", producer="p", seq=99)])[0].base_offset == len(original.bodies)
    repeat = log.append([batch(b"any", producer="p", seq=21)])[0]
    assert repeat.duplicate and repeat.base_offset + repeat.count == len(original.bodies)


def _check_other(warehouse: Warehouse, damaged: set[str]) -> None:
    """The partition beside it serves as ever, unless it is damaged, too."""
    if not any(path.startswith(OTHER.folder) for path in damaged):
        log = warehouse.open_partition(OTHER)
        assert log.append([batch(b"x")])[0].base_offset == log.end_offset - 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__.strip("_"))
def test_f6_a_damaged_file_is_found_before_a_wrong_byte_is_served(
    original: Original, tmp_path: Path, target: str, damage: Damage
) -> None:
    path = _targets(original)[target]
    folder = _copy(original, tmp_path / "wh")
    damage(folder / path, random.Random(f"{target} {damage.__name__}"))
    gone = damage is _delete
    # A second name is the same file: damaged in place, both are.
    damaged = {path}
    if target == "head" and not gone:
        damaged.add(f"{LOG}/{original.commits[-1]:020d}.json")
    if target == "newest checkpoint" and gone:
        # The log goes on from the one before; what is left of this one is the hint that names it.
        damaged.add(f"{LOG}/_last_checkpoint")
    _judge(original, folder, damaged, must_name=not (gone and target in MAY_BE_ABSENT))


def _pairs(original: Original) -> Iterator[tuple[str, str]]:
    """Two files that changed places: of one kind in one partition, of two kinds, and with the partition beside it."""
    here = _targets(original)
    yield here["first data file"], here["last data file"]
    yield here["middle commit"], here["last commit"]
    yield here["middle commit"], f"{LOG}/{original.checkpoints[-1] + 2:020d}.json"
    yield here["newest checkpoint"], here["older checkpoint"]
    yield here["last commit"], here["newest checkpoint"]
    yield here["first data file"], here["middle commit"]
    for kind in ("last commit", "middle commit", "newest checkpoint"):
        yield here[kind], here[kind].replace(REF.folder, OTHER.folder)
    beside = next(iter(sorted((original.folder / OTHER.folder).glob("*.parquet"))))
    yield here["first data file"], str(beside.relative_to(original.folder))


@pytest.mark.parametrize("which", range(10))
def test_f6_files_that_changed_places_are_found(original: Original, tmp_path: Path, which: int) -> None:
    pairs = list(_pairs(original))
    assert len(pairs) == 10
    one, two = pairs[which]
    folder = _copy(original, tmp_path / "wh")
    (folder / one).rename(folder / "between")
    (folder / two).rename(folder / one)
    (folder / "between").rename(folder / two)
    if one.endswith("checkpoint.parquet") or which >= 6:
        # With the commits gone that would tell, only the files themselves can.
        for version in original.commits:
            if version < original.checkpoints[-1]:
                (folder / LOG / f"{version:020d}.json").unlink()
    refused = _judge(original, folder, {one, two}, must_name=True)
    assert refused or "checkpoint" in one, "of checkpoints there is a copy of our own"


def _random_cases(original: Original, tmp_path: Path, *, cases: int, seed: int) -> None:
    drawn = random.Random(seed)
    targets = _targets(original)
    refused = 0
    for case in range(cases):
        kind = drawn.choice(TARGETS)
        damage = drawn.choice(DAMAGES) if drawn.random() < 0.3 else _flip_one_bit
        folder = _copy(original, tmp_path / str(case))
        damage(folder / targets[kind], drawn)
        damaged = {targets[kind], *({targets["last commit"]} if kind == "head" else ())}
        damaged |= {targets["hint"]} if kind == "newest checkpoint" and damage is _delete else set()
        may_be_absent = damage is _delete and kind in MAY_BE_ABSENT
        try:
            refused += _judge(original, folder, damaged, must_name=not may_be_absent)
        except AssertionError as error:
            raise AssertionError(f"case {case}: {damage.__name__} of the {kind}: {error}") from error
        shutil.rmtree(folder)
    print(f"{cases} damaged warehouses: {refused} refused, the others served what was stored")


def test_f6_bits_flipped_anywhere_are_found(original: Original, tmp_path: Path) -> None:
    _random_cases(original, tmp_path, cases=10, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_f6_two_thousand_damaged_warehouses(original: Original, tmp_path: Path) -> None:
    _random_cases(original, tmp_path, cases=2_000, seed=2)


def test_f6_a_hint_that_lies_misleads_nobody_here(original: Original, tmp_path: Path) -> None:
    """Other readers start from it; we look for ourselves."""
    folder = _copy(original, tmp_path / "wh")
    hint = folder / LOG / "_last_checkpoint"
    hint.write_text(json.dumps({"version": original.checkpoints[-2], "size": 1}))
    warehouse = Warehouse.open(str(folder), settings=SETTINGS)
    assert tuple(all_bodies(warehouse.open_partition(REF))) == original.bodies
    warehouse.close()
