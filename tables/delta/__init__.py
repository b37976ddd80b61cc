"""The Delta format of message tables: actions, commits, snapshots, checkpoints, data files."""

from __future__ import annotations
