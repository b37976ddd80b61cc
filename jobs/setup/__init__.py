"""`make setup`, with the standard library alone: packages, Java, jars."""

from __future__ import annotations
