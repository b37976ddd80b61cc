"""The codes of `Unavailable` for partitions that may not be read or written to (SPEC ROUTE-9)."""

from __future__ import annotations

from typing import Final

NOT_READABLE: Final = "not_readable"
#: Nothing of the request is stored.
NOT_WRITABLE: Final = "not_writable"
