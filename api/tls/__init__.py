"""TLS: of the service's own port, and of requests to other processes, with files that may change at any time."""

from __future__ import annotations
