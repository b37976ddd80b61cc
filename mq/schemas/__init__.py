"""Schemas of topics: the setting of a typed topic, and the registry with the versions of each subject."""

from __future__ import annotations
