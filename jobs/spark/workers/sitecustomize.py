"""Lets a Python worker of Spark connect before it imports anything.

Spark starts a process for each stream of a Python source and waits ten seconds, which no setting changes, until it has
connected. The process first imports pyspark, numpy and pyarrow: half a second of work, and more than ten seconds where
other processes take the cores. So the connection is made here, at once, and passed to pyspark when it connects.
Standard library only, and as little as possible of it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _connect(path: str) -> None:
    """Connect to Spark, and give the connection to the first socket that connects to the same path."""
    import socket  # no other process that has this folder on its path needs it

    early = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    plain = socket.socket.connect

    def connect(self: socket.socket, address: object) -> None:
        if address != path:
            plain(self, address)  # type: ignore[arg-type] # any address
            return
        os.dup2(early.fileno(), self.fileno())
        early.close()
        socket.socket.connect = plain  # type: ignore[method-assign]

    try:
        early.connect(path)
    except OSError:
        early.close()  # pyspark tries again, and reports the error
        return
    socket.socket.connect = connect  # type: ignore[method-assign, assignment]


def _run_next() -> None:
    """Run the `sitecustomize` that Python would have imported without this folder."""
    here = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path).resolve() != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
if _path and any(argument.startswith("pyspark.") for argument in sys.orig_argv[1:3]):
    with contextlib.suppress(ImportError):
        _connect(_path)
_run_next()
