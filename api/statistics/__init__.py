"""Statistics of groups, counted by this process and stored minute by minute."""

from __future__ import annotations
