"""What drives the client's core: threads that block, or an event loop. Both run the same coroutines."""

from __future__ import annotations
