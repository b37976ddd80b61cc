"""Listening sockets, taken before anything else happens, so that a port in use is told at once."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

from deltamq.mq.errors import Refused

#: Connections that the kernel keeps until they are accepted.
BACKLOG: Final = 2_048


def listening(host: str, port: int, *, field: str) -> socket.socket:
    """Return a socket that listens at the address and does not block.

    Raises
    ------
    Refused
        The address is taken or does not exist; `field` is the setting of the port.
    """
    with ExitStack() as on_error:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            text = error.strerror or str(error)
            raise Refused(f"cannot listen on {host}:{port}: {text}", field=field) from None
        listener.setblocking(False)
        on_error.pop_all()
    return listener
