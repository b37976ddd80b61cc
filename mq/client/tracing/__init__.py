"""Spans of OpenTelemetry around sends and handlers, for applications that trace."""

from __future__ import annotations
