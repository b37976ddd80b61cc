"""What a consumer says when it joins: the topics that it reads. To the coordinator it is bytes of the members alone.

version (2)   topics: count (4), names   what else the version has
"""

from __future__ import annotations

import struct
from typing import Final

from deltamq.api.kafka.messages.codec import Reader
from deltamq.mq.errors import Refused

_SHORT: Final = struct.Struct(">h")


def subscription_of(data: bytes | memoryview) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription; None if it is none."""
    reader = Reader(memoryview(data))
    try:
        reader.number(_SHORT)
        count = reader.count(flexible=False)
        return frozenset(str(reader.take(reader.number(_SHORT)), "utf-8") for _ in range(count))
    except (Refused, UnicodeDecodeError):
        return None
