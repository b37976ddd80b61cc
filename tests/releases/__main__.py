"""Make `releases.tar.xz` from the history of the repository."""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tests.releases import ARCHIVE, RELEASES

#: Starts a service on an empty folder, and prints the files that it has imported from its own tree.
_IMPORTED: Final = """
import asyncio, os, sys
from pathlib import Path
import api.serve
from api.service import Service
from tables.config import load

async def start():
    await Service.start(load(None, {"warehouse.uri": "warehouse", "service.port": 0}))
    root = Path.cwd()
    for path in sorted({Path(one.__file__) for one in [*sys.modules.values()] if getattr(one, "__file__", None)}):
        if path.is_relative_to(root):
            print(path.relative_to(root), flush=True)
    os._exit(0)  # the service has done its work

asyncio.run(start())
"""


def _files_of(commit: str) -> dict[str, bytes]:
    """Return the files of a commit that a start needs."""
    archive = subprocess.run(
        ["git", "archive", commit, "api", "mq", "tables", "conf/local.toml"], capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(folder, filter="data")
        listed = subprocess.run(
            [sys.executable, "-c", _IMPORTED], cwd=folder, env={"PYTHONPATH": folder}, capture_output=True, text=True
        )
        if listed.returncode:
            raise RuntimeError(listed.stderr)
        pages = [str(path.relative_to(folder)) for path in Path(folder, "api").glob("console*") if path.is_file()]
        names = [*listed.stdout.split(), *pages, "conf/local.toml"]
        return {name: Path(folder, name).read_bytes() for name in names}


def main() -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as packed:
        for name, release in RELEASES.items():
            for path, text in sorted(_files_of(release.commit).items()):
                entry = tarfile.TarInfo(f"{name}/{path}")
                entry.size = len(text)
                packed.addfile(entry, io.BytesIO(text))
    ARCHIVE.write_bytes(lzma.compress(made.getvalue(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
