"""Occasional work on stored tables: compaction, verification, counting, repair."""

from __future__ import annotations
