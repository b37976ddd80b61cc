"""Names of tables and views in a catalog: every topic name becomes an identifier, and no two become the same.

    topic order_events.v2    ->    topic_order__events_2ev2

Catalogs fold case, and many allow only letters, digits and underscores. So `[a-z0-9]` stay, an underscore is doubled,
and every other byte becomes `_` and two hexadecimal digits. The separators between the parts of a name begin with `_`
and a letter that is not a hexadecimal digit, so they cannot occur within a part. A name that would be too long keeps
its beginning and ends in a digest.
"""

from __future__ import annotations

import hashlib
from typing import Final

from deltamq.mq.names import PartitionName, broker_of

#: Hive's metastore takes 128 characters.
_LENGTH_MAX: Final = 120
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")
_DIGEST: Final = "_h"


def topic_name(topic: str) -> str:
    """Return the name of a topic's view."""
    return _bounded(f"topic_{_encoded(topic)}")


def values_name(topic: str) -> str:
    """Return the name of the view of a typed topic's values."""
    return _bounded(f"values_{_encoded(topic)}")


def quarantine_name(topic: str) -> str:
    """Return the name of the view of a topic's messages that did not fit its schema."""
    return _bounded(f"quarantine_{_encoded(topic)}")


def latest_name(topic: str) -> str:
    """Return the name of the view of the newest value of each key of a typed topic."""
    return _bounded(f"latest_{_encoded(topic)}")


def partition_name(topic: str, partition: str, generation: int) -> str:
    """Return the name of a partition's table: `partition_orders_at_broker_2da`.

    A partition that is not named like its topic has its own name after `_of_`.
    """
    name, broker = PartitionName.parse(partition)
    own = "" if name == topic else f"_of_{_encoded(name)}"
    return _bounded(f"partition_{_encoded(topic)}{own}_at_{_encoded(broker)}{_life(generation)}")


def dead_letters_name(group: str, partition: str, generation: int, *, marks: bool = False) -> str:
    """Return the name of the table of a group's dead letters on a broker, or with `marks` of the marks about them."""
    broker, what = broker_of(partition), "_marks" if marks else ""
    return _bounded(f"dlq_{_encoded(group)}_at_{_encoded(broker)}{what}{_life(generation)}")


def quoted(*parts: str) -> str:
    """Return a name of several parts, quoted for SQL."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def literal(text: str) -> str:
    """Return a text as an SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _life(generation: int) -> str:
    return f"_g{generation}" if generation else ""


def _encoded(name: str) -> str:
    return "".join(chr(b) if b in _PLAIN else "__" if b == ord("_") else f"_{b:02x}" for b in name.encode())


def _bounded(name: str) -> str:
    if len(name) <= _LENGTH_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: _LENGTH_MAX - len(digest) - len(_DIGEST)]}{_DIGEST}{digest}"
