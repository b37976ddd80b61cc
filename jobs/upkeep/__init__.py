"""Jobs that maintain the files of partitions: retention, compaction and verification."""

from __future__ import annotations
