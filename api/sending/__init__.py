"""Storing producers' messages: placing them, committing them, and returning their offsets."""

from __future__ import annotations
