"""The pull consumer, which reads partitions by offset."""

from __future__ import annotations
