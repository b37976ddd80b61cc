"""The sockets of the Kafka door."""

from __future__ import annotations
