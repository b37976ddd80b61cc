"""The creation of a table by two processes at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.creation import check_no_data
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import ListedFile


class Rival(LocalStore):
    """A store in which another process makes the table, and appends to it, just before its files are listed."""

    def entries(self, folder: str) -> list[ListedFile]:
        if folder == "t":
            self.put_if_absent("t/_delta_log/00000000000000000000.json", b"{}", durable=True)
            self.put_if_absent("t/part-0.parquet", b"rows", durable=True)
        return super().entries(folder)


def test_data_of_another_process_that_has_just_made_the_table_is_no_damage(tmp_path: Path) -> None:
    """One of several processes that began together on a new warehouse once took it for damaged, and stopped."""
    check_no_data(Rival(tmp_path), "t")


def test_data_without_a_log_is_damage(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("t/part-0.parquet", b"rows", durable=True)
    with pytest.raises(Corrupt, match="restore its _delta_log"):
        check_no_data(store, "t")
