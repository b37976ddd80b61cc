"""Ports for services that tests start."""

from __future__ import annotations

import contextlib
import secrets
import socket
from typing import Final

__all__ = ["free_port"]

#: Below the ports that the system gives to connections: one of those may be taken between the look and the start.
_PORTS: Final = range(10_000, 32_000)


def free_port() -> int:
    """Return a port on which nothing listens, drawn so that processes of the tests do not take the same one."""
    while True:
        port = secrets.choice(_PORTS)
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
