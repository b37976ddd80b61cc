"""The commands `deltamq jobs` and `deltamq verify`."""

from __future__ import annotations
