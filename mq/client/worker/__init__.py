"""Handlers that a module declares, and the process that runs them."""

from __future__ import annotations
