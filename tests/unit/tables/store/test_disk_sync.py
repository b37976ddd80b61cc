"""On macOS an acknowledged message is on the drive, not in its cache (SPEC RELY-11)."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from deltamq.tables.store import disk_sync
from deltamq.tables.store.local import OsFiles


@pytest.mark.parametrize(
    "refused", [None, errno.ENOTSUP, errno.ENOTTY, errno.EIO], ids=["full", "no", "no tty", "broken"]
)
def test_rely_11_macos_is_told_to_write_the_drives_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    calls: list[str] = []

    def full(fd: int, command: int) -> int:
        calls.append(f"fcntl {command}")
        if refused is not None:
            raise OSError(refused, os.strerror(refused))
        return 0

    monkeypatch.setattr(disk_sync, "_FULL", 51)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    write = lambda: OsFiles().write_new(str(tmp_path / "a"), b"x", sync=True)  # noqa: E731
    if refused == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            write()
        assert calls == ["fcntl 51"], "a drive that fails is no reason to be content with less"
        return
    write()
    OsFiles().sync_folder(str(tmp_path))
    assert calls == (["fcntl 51"] if refused is None else ["fcntl 51", "fsync"]) * 2


def test_rely_11_elsewhere_it_is_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(disk_sync, "_FULL", None)
    monkeypatch.setattr(os, "fsync", calls.append)
    OsFiles().write_new(str(tmp_path / "a"), b"x", sync=True)
    assert len(calls) == 1
