"""The socket for Kafka's clients, taken before the service starts: others must know the address."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from mq.errors import Refused
from tables.config_sections import ServiceSettings

__all__ = ["KafkaListener", "bind_kafka"]

_BACKLOG: Final = 2_048


@dataclass(frozen=True, slots=True)
class KafkaListener:
    """A listening socket, and the address that clients are told."""

    socket: socket.socket
    advertised: str

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def bind_kafka(settings: ServiceSettings) -> KafkaListener | None:
    """Return the listener for Kafka's clients; None if there is no port for them.

    Raises
    ------
    Refused
        The address is taken or does not exist; or callers must authenticate, which Kafka's cannot do here yet.
    """
    if not settings.kafka_port:
        return None
    if settings.auth:
        raise Refused(
            "service.kafka_port: Kafka's clients cannot authenticate here yet (SASL), and service.auth lets nobody in "
            "who does not; set one of the two",
            field="service.kafka_port",
        )
    host, port = settings.host, settings.kafka_port
    with ExitStack() as on_error:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            text = error.strerror or str(error)
            raise Refused(f"cannot listen on {host}:{port}: {text}", field="service.kafka_port") from None
        listener.setblocking(False)
        on_error.pop_all()
    return KafkaListener(listener, settings.kafka_address or _reachable(listener))


def _reachable(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.getfqdn()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
