"""The queue's own logs and tables: records, checkpoints, delays, metadata, retention, recovery at a start."""

from __future__ import annotations
