"""Decisions of scheduled jobs and streams: jobs that run nowhere, shares of shards, tries, admission, offsets."""

from __future__ import annotations
