"""The progress of groups: commits in lanes of all processes, and what they mean in the queues of static topics."""

from __future__ import annotations
