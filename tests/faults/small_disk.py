"""A small file system that a test fills and empties."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deltamq.mq.limits import MIB

__all__ = ["SmallDisk", "mounted"]

_BALLAST = "ballast"
_PAGE_BYTES = 4_096


class SmallDisk:
    """A file system in memory, mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def with_room_for(self, pages: int) -> Iterator[None]:
        """Leave room for only this number of pages of 4 KiB until the block ends."""
        ballast = self.folder / _BALLAST
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_PAGE_BYTES))
            except OSError as error:
                assert error.errno == errno.ENOSPC
            file.truncate(max(0, file.tell() - pages * _PAGE_BYTES))
        try:
            yield
        finally:
            ballast.unlink()

    def remount(self, options: str) -> None:
        """Change the size, or make the file system read only."""
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.folder)], check=True)


@contextmanager
def mounted(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mount a file system of `mib` MiB; skips the test if that is not possible."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    size = f"size={mib * MIB}"
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
