"""The check in front of all paths: what each call needs, which principal calls, and whether it may."""

from __future__ import annotations
