"""The members of groups of Kafka's consumers."""

from __future__ import annotations
