"""The ordered consumer of exclusive groups."""

from __future__ import annotations
