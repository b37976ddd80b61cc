"""Rules of the queue: checkpoints, handles, pops, acknowledgements, retries, delays, progress of groups."""

from __future__ import annotations
