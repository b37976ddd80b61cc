"""Statistics of groups: what became of the messages that they got, by minute."""

from __future__ import annotations
