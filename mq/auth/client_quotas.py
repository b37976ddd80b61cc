"""Quotas of Kafka's clients, by user and by the id that a client gives itself (SPEC KAFKA-28).

A quota belongs to an entity: a user, a client id, or both, each by its name or as the default, which means whoever has
no quota of its own. The quota of one user alone is that of the principal (SEC-9), and not here.

    narrowest   user and client id   user and any id   user   any user and client id   any user and any id   any user
                client id   any id                                                                            widest

The narrowest entity with a bound counts, for each way of its own, and no wider one. Whoever it names as the default has
a share for itself: all connections of one user and client id, of one user, or of one client id, have one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import CLIENT_ID_LENGTH_MAX

#: In place of a name: every user, or every client id, without a narrower quota. No name is empty.
DEFAULT: Final = ""
#: User and client id; None for what an entity does not name.
Entity: TypeAlias = tuple[str | None, str | None]


class ClientQuota(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes a second clients may send to each process, and get from it; None is without a bound."""

    user: str | None = None
    client_id: str | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None

    @property
    def entity(self) -> Entity:
        """Whose quota it is."""
        return self.user, self.client_id

    @property
    def is_principals(self) -> bool:
        """Whether it is of one user alone, and so the quota of the principal."""
        return bool(self.user) and self.client_id is None

    @property
    def is_open(self) -> bool:
        """Whether nothing is bounded."""
        return self.bytes_in_per_s is self.bytes_out_per_s is None

    @property
    def whose(self) -> str:
        """The entity in words, of which each has its own: a user's name has no comma."""
        named = [
            f"default {kind}" if name == DEFAULT else f"{kind} {name}"
            for kind, name in (("user", self.user), ("client-id", self.client_id))
            if name is not None
        ]
        return ", ".join(named)


def check_client_id(client_id: str) -> None:
    """Return if there may be a quota of this client id; raise `Unprocessable` if not."""
    if len(client_id) > CLIENT_ID_LENGTH_MAX or not client_id.isprintable():
        detail = f"client-id: at most {CLIENT_ID_LENGTH_MAX} printable characters"
        raise Unprocessable(detail, field="client-id", extra={"limit": CLIENT_ID_LENGTH_MAX})


def narrowest(user: str, client_id: str) -> Iterator[tuple[Entity, Entity]]:
    """Yield the entities of a client, the narrowest first, each with those who share its quota: an empty name is none.

    A client without authentication has an empty name as its user, and so no quota but the default user's.
    """
    yield (user, client_id), (user, client_id)
    yield (user, DEFAULT), (user, client_id)
    yield (user, None), (user, None)
    yield (DEFAULT, client_id), (user, client_id)
    yield (DEFAULT, DEFAULT), (user, client_id)
    yield (DEFAULT, None), (user, None)
    yield (None, client_id), (None, client_id)
    yield (None, DEFAULT), (None, client_id)
