"""Kafka's requests and answers: their fields, versions, frames and errors; pure."""

from __future__ import annotations
