"""The error that stops the main job."""

from __future__ import annotations


class JobFailed(Exception):
    """The main job stops; the message names the reason and the remedy."""
