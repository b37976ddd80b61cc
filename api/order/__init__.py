"""Exclusive groups: online clients, allocation, pull locks."""

from __future__ import annotations
