"""The protocol of our tables: what they require of writers (SPEC TABLE-1).

Delta's answer to "who may write here" is the protocol: a writer that does not know one of a table's writer features
must leave the table alone, and readers need not care. Message tables have a feature that only DeltaMQ knows, so every
other engine reads them and refuses OPTIMIZE, VACUUM, DELETE and ALTER before it touches a file. State tables are merged
by Spark, which would refuse them, too: they have none, and say in another way who wrote (`tables.state.signature`).

It is our own answer, too: a later release that stores what this one would misread gives the table one more feature, of
writers or of readers. The protocol is looked at where a commit or a checkpoint brings one (SPEC META-9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from deltamq.mq.errors import TABLE_NEWER, Unavailable

#: The writer feature that no other engine has.
_FEATURE: Final = "deltamq"
#: Spark reads no table whose metadata use a feature that is not listed; that the offset is not null is an invariant.
_FEATURES: Final = ("appendOnly", "invariants", _FEATURE)
MESSAGE_PROTOCOL: Final[Mapping[str, object]] = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": list(_FEATURES),
}
#: The writer features of message tables: all that this release knows.
MESSAGE_FEATURES: Final = frozenset(_FEATURES)
#: The protocol of state tables, and of message tables that were made before the feature.
UNGUARDED_PROTOCOL: Final[Mapping[str, object]] = {"minReaderVersion": 1, "minWriterVersion": 2}

#: Settings of message tables for engines that act on a table without writing a commit, which no protocol prevents:
#: the clean-up that comes with a checkpoint of theirs would delete commits that no checkpoint of ours covers.
MESSAGE_TABLE_SETTINGS: Final[Mapping[str, str]] = {
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 5000 weeks",
}


def writer_features(protocol: Mapping[str, Any], source: str) -> frozenset[str]:
    """Return the writer features of a table with this protocol action, which `source` holds.

    Raises
    ------
    Unavailable
        `table_newer`: its readers must know what this release does not.
    """
    version = protocol["minReaderVersion"]
    needed = protocol.get("readerFeatures") or ([] if version in (1, 3) else [f"reader version {version}"])
    if needed:
        raise _newer(source, "reader", needed)
    features = frozenset(protocol.get("writerFeatures") or ())
    return MESSAGE_FEATURES if features == MESSAGE_FEATURES else features  # one object for thousands of tables


def is_guarded(features: frozenset[str]) -> bool:
    """Return whether other engines refuse to write to a table with these writer features."""
    return _FEATURE in features


def may_write(features: frozenset[str]) -> bool:
    """Return whether this release knows all of these writer features."""
    return features <= MESSAGE_FEATURES


def check_may_write(features: frozenset[str], source: str) -> None:
    """Return if this release knows all of these writer features; raise `Unavailable` (`table_newer`) if not."""
    if not may_write(features):
        raise _newer(source, "writer", features - MESSAGE_FEATURES)


def _newer(source: str, kind: str, features: Iterable[str]) -> Unavailable:
    names = ", ".join(map(repr, sorted(features)))
    return Unavailable(
        f"{source}: this table has the {kind} feature {names}, which this release does not know: start the release "
        "that gave it that, or a newer one",
        code=TABLE_NEWER,
    )
