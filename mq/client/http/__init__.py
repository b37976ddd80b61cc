"""Calls to the service: connections, attempts, the cluster's processes, errors."""

from __future__ import annotations
