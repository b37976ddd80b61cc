"""Avro: schemas as trees of nodes, bodies as values, values as bodies."""

from __future__ import annotations
