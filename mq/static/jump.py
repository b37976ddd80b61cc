"""The jump of logical offsets at an `available` remapping (SPEC STATIC-9)."""

from __future__ import annotations

from typing import Final

#: Logical offsets of a new leader begin at a multiple of this.
BLOCK: Final = 10_000


def jump_above(maximum: int, block: int = BLOCK) -> int:
    """Return the logic offset of a new leader, above all that the old one could hold; `maximum` is the old one's end.

    It is the next multiple of `block`, or the one behind it if `maximum` is in the upper half of its block.
    """
    assert maximum >= 0, "the old leader's logical offsets are decided"
    full, rest = divmod(maximum, block)
    return (full + 1 if rest < block // 2 else full + 2) * block
