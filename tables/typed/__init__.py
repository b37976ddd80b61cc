"""Typed topics: schemas as columns, and bodies as columns (SPEC TYPE-10 to TYPE-19). Nothing here does I/O."""

from __future__ import annotations
