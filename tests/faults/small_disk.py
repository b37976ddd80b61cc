"""A small file system of its own, which a test fills and empties."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq.limits import MIB

__all__ = ["SmallDisk", "mounted"]

_BALLAST = "ballast"
_PAGE_BYTES = 4_096


class SmallDisk:
    """In memory; mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def with_room_for(self, pages: int) -> Iterator[None]:
        """Meanwhile there is room for so many pages of 4 KiB only."""
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
        """Give it another size, or make it read only."""
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.folder)], check=True)


@contextmanager
def mounted(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """A file system of so many megabytes; skips the test where none can be mounted."""
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
