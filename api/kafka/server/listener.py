"""The socket for Kafka's clients, taken before the service starts: others must know the address."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from deltamq.api.sockets import listening
from deltamq.tables.config_sections import ServiceSettings


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
        The address is taken or does not exist.
    """
    if not settings.kafka_port:
        return None
    listener = listening(settings.host, settings.kafka_port, field="service.kafka_port")
    return KafkaListener(listener, settings.kafka_address or _reachable(listener))


def _reachable(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.getfqdn()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
