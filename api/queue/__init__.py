"""Groups and POP: lanes, pops, handles, progress, retries, delayed messages."""

from __future__ import annotations
