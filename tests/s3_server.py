"""A real S3 API server on this machine: `versitygw`, built once with Go from `tests/s3` and kept in `.tools/`.

Its posix backend stores objects as files and its conditional puts are exclusive across requests, so the contract of
the object store is tested against an independent server. A machine without Go tests only the other stores.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from obstore.store import S3Store

from deltamq.tables.store.object import ObjectStore
from tests.free_ports import free_port

__all__ = ["TOOLS", "S3Server", "ServerUnavailable", "built", "s3_server", "started", "tools_lock"]

_SOURCE: Final = Path(__file__).parent / "s3"
#: What is built and fetched for tests.
TOOLS: Final = Path(__file__).parents[1] / ".tools"
_BUILD_S: Final = 500
_START_S: Final = 60
#: Ports that are tried: another process may take one between our finding it free and the server's start.
_PORTS: Final = 5
_BUCKET: Final = "warehouse"
_USER: Final = "tests"
_SECRET: Final = "tests-only-secret"


class ServerUnavailable(Exception):
    """No server exists and none can be built; the message says why."""


class S3Server:
    """A running server with one bucket."""

    def __init__(self, endpoint: str, pid: int) -> None:
        self.endpoint = endpoint
        self.pid = pid

    def store(self, prefix: str) -> ObjectStore:
        """Return a store below `prefix`, as one process of DeltaMQ opens it."""
        remote = S3Store(
            _BUCKET,
            prefix=prefix,
            endpoint=self.endpoint,
            access_key_id=_USER,
            secret_access_key=_SECRET,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": "10s"},
        )
        return ObjectStore(f"s3://{_BUCKET}/{prefix}", remote)

    def environment(self) -> dict[str, str]:
        """Return the environment with which processes of DeltaMQ, as every S3 tool, open `s3://` addresses here."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": _USER,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def uri(self, prefix: str) -> str:
        """Return the address of a warehouse."""
        return f"s3://{_BUCKET}/{prefix}"

    def reader_options(self) -> dict[str, str]:
        """Return the options with which another Delta reader opens `s3://` addresses here."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": _USER,
            "aws_secret_access_key": _SECRET,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server that stores in `folder`.

    Raises
    ------
    ServerUnavailable
        Go is not installed, or the server cannot be built or started here.
    """
    binary = built("s3", ".")
    (folder / _BUCKET).mkdir(parents=True)
    secrets = {"ROOT_ACCESS_KEY_ID": _USER, "ROOT_SECRET_ACCESS_KEY": _SECRET}
    command = (str(binary), "127.0.0.1:{port}", str(folder))
    with started(command, folder / "server.log", secrets) as (server, port):
        yield S3Server(f"http://127.0.0.1:{port}", server.pid)


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, variables: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a server until the context ends; yield it and its port, which `command` has as `{port}`, when it answers."""
    environment = {"PATH": os.environ.get("PATH", ""), **variables}
    for _ in range(_PORTS):
        port = free_port()
        with log.open("ab") as output:
            server = subprocess.Popen(
                [part.replace("{port}", str(port)) for part in command], env=environment, stdout=output, stderr=output
            )
        try:
            if _is_up(server, port):
                yield server, port
                return
        finally:
            server.kill()
            server.wait()
    raise ServerUnavailable(f"{command[0]} did not start: {log.read_text(errors='replace')[-300:]}")


@contextlib.contextmanager
def tools_lock() -> Iterator[None]:
    """Keep other processes of the tests from building or fetching at the same time."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(name: str, package: str, module: Path = _SOURCE) -> Path:
    """Return the program of a package of a Go module, built if it is not there yet.

    Raises
    ------
    ServerUnavailable
        Go is not installed, or the program cannot be built.
    """
    source = b"".join((module / file).read_bytes() for file in (f"{package}/main.go", "go.mod"))
    binary = TOOLS / f"{name}-{hashlib.sha256(source).hexdigest()[:12]}"
    if binary.exists():
        return binary
    go = shutil.which("go")
    if go is None:
        raise ServerUnavailable(f"Go is not installed, so {name} cannot be built")
    with tools_lock():
        if not binary.exists():
            _build(go, package, module, binary)
    return binary


def _build(go: str, package: str, module: Path, binary: Path) -> None:
    made = TOOLS / "building"
    try:
        subprocess.run(
            # what makes a program faster or easier to debug is left out: compiling takes a third less
            [go, "build", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w", "-o", str(made), f"./{package}"],
            cwd=module,
            env={**os.environ, "CGO_ENABLED": "0", "GOGC": "400"},
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise ServerUnavailable(f"{binary.name} cannot be built: {error.stderr.strip()[-300:]}") from error
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailable(f"{binary.name} was not built in {_BUILD_S} s") from error
    made.rename(binary)


def _is_up(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server answers or has ended; return whether it answers."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            # what answers may be the process that was faster
            return server.poll() is None
        time.sleep(0.02)
    return False
