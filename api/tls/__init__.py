"""TLS: of the service's own port, and of requests to other processes, with files that may change at any time."""

from __future__ import annotations

from deltamq.api.tls.contexts import peer_context, server_context
from deltamq.api.tls.handshakes import TlsServer
from deltamq.api.tls.subject import EXTENSION as TLS
from deltamq.api.tls.subject import TlsPeer, peer_of

__all__ = ["TLS", "TlsPeer", "TlsServer", "peer_context", "peer_of", "server_context"]
