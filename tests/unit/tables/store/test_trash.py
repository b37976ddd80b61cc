"""A folder that is deleted is out of sight at once, and its files go in the background, whichever process is killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.trash import Trash
from tests.api.running import until

FILES = [f"t/old/{folder}/{name}" for folder in "ab" for name in "xyz"]


class SlowDisk:
    """Removals wait until they may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.asked = threading.Event()

    def unlink(self, path: str) -> None:
        self.asked.set()
        assert self.may_go_on.wait(30)
        os.remove(path)


@pytest.fixture
def slow() -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.may_go_on.set()


def _filled(folder: Path, trash: Trash) -> LocalStore:
    store = LocalStore(folder, trash=trash)
    for key in FILES:
        store.put(key, b"x", durable=False)
    return store


def _left(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".deleted-")]


@pytest.mark.promise("GROUP-9")
def test_a_deletion_does_not_wait_for_its_files_and_what_is_made_anew_stays(tmp_path: Path, slow: SlowDisk) -> None:
    store = _filled(tmp_path, Trash(str(tmp_path), slow.unlink))
    store.delete_tree("t/old")
    assert slow.asked.wait(30)
    assert store.folders("t") == [] and len(_left(tmp_path)) == 1
    store.put("t/old/a/x", b"new", durable=True)
    store.delete_tree("t/never")
    slow.may_go_on.set()
    until(lambda: not _left(tmp_path))
    assert store.read("t/old/a/x").to_pybytes() == b"new"


def test_a_process_that_ends_leaves_the_rest_to_the_next(tmp_path: Path, slow: SlowDisk) -> None:
    trash = Trash(str(tmp_path), slow.unlink)
    store = _filled(tmp_path, trash)
    store.delete_tree("t/old")
    assert slow.asked.wait(30)
    ending = threading.Thread(target=store.close)
    ending.start()
    until(lambda: trash.closed)
    slow.may_go_on.set()
    ending.join(30)
    (grave,) = _left(tmp_path)
    left = [name for _, _, names in os.walk(tmp_path / grave) for name in names]
    assert len(left) == len(FILES) - 1, "it ended in the middle"
    LocalStore(tmp_path).prepare()
    until(lambda: not _left(tmp_path))


@pytest.mark.promise("GROUP-9")
def test_what_a_killed_process_had_only_renamed_is_removed_by_the_next(tmp_path: Path) -> None:
    grave = tmp_path / ".deleted-5e1f" / "deep"
    grave.mkdir(parents=True)
    (grave / "file").write_bytes(b"x")
    (tmp_path / "kept").mkdir()
    LocalStore(tmp_path).prepare()
    until(lambda: not _left(tmp_path))
    assert os.listdir(tmp_path) == ["kept"]
