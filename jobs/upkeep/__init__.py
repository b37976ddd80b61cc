"""Jobs that maintain the files of partitions: retention, compaction, erasure and verification."""

from __future__ import annotations
