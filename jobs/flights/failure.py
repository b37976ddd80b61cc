"""Why the main job cannot go on."""

from __future__ import annotations

__all__ = ["JobFailed"]


class JobFailed(Exception):
    """The main job stops; the message says why and what to do."""
