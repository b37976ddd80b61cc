"""The protocol of our tables: what they require of writers (SPEC TABLE-1).

Delta's answer to "who may write here" is the protocol: a writer that does not know one of a table's writer features
must leave the table alone, and readers need not care. Message tables have a feature that only DeltaMQ knows, so every
other engine reads them and refuses OPTIMIZE, VACUUM, DELETE and ALTER before it touches a file. State tables are merged
by Spark, which would refuse them, too: they have none, and say in another way who wrote (`tables.state.signature`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The writer feature that no other engine has.
_FEATURE: Final = "deltamq"
MESSAGE_PROTOCOL: Final[Mapping[str, object]] = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    # Spark reads no table whose metadata use a feature that is not listed; that the offset is not null is an invariant.
    "writerFeatures": ["appendOnly", "invariants", _FEATURE],
}
#: The protocol of state tables, and of message tables that were made before the feature.
UNGUARDED_PROTOCOL: Final[Mapping[str, object]] = {"minReaderVersion": 1, "minWriterVersion": 2}

#: Settings of message tables for engines that act on a table without writing a commit, which no protocol prevents:
#: the clean-up that comes with a checkpoint of theirs would delete commits that no checkpoint of ours covers.
MESSAGE_TABLE_SETTINGS: Final[Mapping[str, str]] = {
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 5000 weeks",
}


def is_guarded(protocol: Mapping[str, object] | None) -> bool:
    """Return whether other engines refuse to write to a table with this protocol action."""
    features = (protocol or {}).get("writerFeatures")
    return isinstance(features, list) and _FEATURE in features
