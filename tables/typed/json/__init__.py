"""JSON: schemas as trees of nodes and what they ask of values, texts as values, values as texts."""

from __future__ import annotations
