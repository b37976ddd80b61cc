"""Jobs that look after the files of partitions: retention and verification."""

from __future__ import annotations
