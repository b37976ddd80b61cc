"""Exclusive consumption: authorizations, pull locks, and the run of one partition in a client."""

from __future__ import annotations
