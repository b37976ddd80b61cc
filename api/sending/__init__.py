"""Storing what producers send: placing messages, committing them, and telling where they are."""

from __future__ import annotations
