"""Keys or access rules while events change them: by id, and by principal, so that no event visits those of others.

    by_id          {id: one}
    by_principal   {principal: {id: one}}        the same ones; a principal without any has no entry

Both belong to a state that is never modified. So the outer mappings are copied once, when the changes begin, and those
of a principal when it is changed for the first time: a fold takes as long as its events are many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar


class Holding(Protocol):
    """What a principal has: a key or an access rule."""

    @property
    def id(self) -> str: ...

    @property
    def principal(self) -> str: ...


H = TypeVar("H", bound=Holding)


def by_principal(those: Iterable[H]) -> dict[str, dict[str, H]]:
    """Return what each principal has, by id, in the given order."""
    found: dict[str, dict[str, H]] = {}
    for one in those:
        found.setdefault(one.principal, {})[one.id] = one
    return found


class Holdings(Generic[H]):
    """Keys or access rules that are being changed."""

    def __init__(self, by_id: Mapping[str, H], by_principal: Mapping[str, Mapping[str, H]]) -> None:
        """Begin with those of a state, which stay as they are."""
        self.by_id = dict(by_id)
        self.by_principal = dict(by_principal)
        #: Those of principals that were changed: copies of ours.
        self._copies: dict[str, dict[str, H]] = {}

    def of(self, principal: str) -> list[H]:
        """Return what a principal has now."""
        return list(self.by_principal.get(principal, {}).values())

    def put(self, one: H) -> None:
        """Add one, or replace the one with its id."""
        before = self.by_id.get(one.id)
        if before is not None and before.principal != one.principal:
            self.remove(one.id)
        self.by_id[one.id] = one
        self._mine(one.principal)[one.id] = one

    def remove(self, id_: str) -> None:
        """Remove the one with this id, if there is one."""
        found = self.by_id.pop(id_, None)
        if found is None:
            return
        mine = self._mine(found.principal)
        del mine[id_]
        if not mine:
            self._forget(found.principal)

    def remove_all_of(self, principal: str) -> None:
        """Remove all that a principal has."""
        for one in self.of(principal):
            del self.by_id[one.id]
        self._forget(principal)

    def _mine(self, principal: str) -> dict[str, H]:
        """Return what a principal has, to be modified."""
        mine = self._copies.get(principal)
        if mine is None:
            mine = self._copies[principal] = dict(self.by_principal.get(principal, {}))
            self.by_principal[principal] = mine
        return mine

    def _forget(self, principal: str) -> None:
        self.by_principal.pop(principal, None)
        self._copies.pop(principal, None)
