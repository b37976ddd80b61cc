"""What `deltamq apply` brought a warehouse to last, to be compared with what there is (SPEC LOOK-19).

<warehouse>/applied/desired.json      what files said, who applied it and when
"""

from __future__ import annotations

from typing import Final

import msgspec

from deltamq.mq.meta.desired import Desired
from deltamq.tables.ops.stored_json import read_stored
from deltamq.tables.store.store import Store

#: The folder of the record; backups have it.
APPLIED: Final = "applied"
_KEY: Final = f"{APPLIED}/desired.json"


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What was applied; `by` is a principal, empty without authentication."""

    desired: Desired
    applied_ms: int
    by: str = ""


_decode: Final = msgspec.json.Decoder(Applied)


def read_applied(store: Store) -> Applied | None:
    """Return what was applied last; None if nothing ever was."""
    return read_stored(store, _KEY, _decode)


def write_applied(store: Store, applied: Applied) -> None:
    """Store what was applied, in place of what was before."""
    store.replace(_KEY, msgspec.json.encode(applied))
