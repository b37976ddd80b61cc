"""Occasional work on stored tables: compaction, erasure, verification, counting, repair."""

from __future__ import annotations
