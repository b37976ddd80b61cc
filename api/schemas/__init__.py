"""The schema registry over REST, as Confluent's clients speak with it, and whether schemas are compatible."""

from __future__ import annotations
