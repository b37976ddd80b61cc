"""State tables, which Spark merges and people query: columns and rows, and creating and reading them without Spark."""

from __future__ import annotations
