"""Requests and answers: bodies are decoded and checked, answers and problem documents are built."""

from __future__ import annotations
