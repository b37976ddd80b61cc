"""The progress of groups: commits in lanes of all processes, and their meaning in the queues of static topics."""

from __future__ import annotations
