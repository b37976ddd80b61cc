"""The values that users pass and get: messages, results of sends and of handlers."""

from __future__ import annotations
