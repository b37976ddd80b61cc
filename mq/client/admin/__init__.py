"""Topics, groups and the cluster as typed values."""

from __future__ import annotations
