"""Backups of a warehouse: made while it is in use, and restored."""

from __future__ import annotations
