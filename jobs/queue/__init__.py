"""The jobs that move messages: `revive` for unacknowledged ones, `delay` for delayed ones."""

from __future__ import annotations
