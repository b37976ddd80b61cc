"""Record batches of Kafka, version 2, as Arrow columns and back; pure: no file, no socket, no clock."""

from __future__ import annotations
