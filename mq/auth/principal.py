"""Principals: who calls. Access rules and keys name them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET, UnsetType

from deltamq.mq.auth_limits import NOTE_LENGTH_MAX, PRINCIPAL_LENGTH_MAX
from deltamq.mq.errors import Refused, Unprocessable

#: What a principal's name may be: also an e-mail address, or the subject of a token of an identity provider.
PRINCIPAL_PATTERN: Final = rf"^[A-Za-z0-9._@:+|\-]{{1,{PRINCIPAL_LENGTH_MAX}}}$"
_NAME: Final = re.compile(PRINCIPAL_PATTERN.strip("^$"))
#: How the name of a group of the identity provider begins, where rules name it.
GROUP_PREFIX: Final = "group:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Somebody, or a program, that has keys and access."""

    name: str
    #: Whom to ask about it, in the words of an administrator.
    note: str = ""
    created_ms: int
    #: Stored only where there is something in it; see `disabled_since_ms`.
    disabled_ms: int | UnsetType = UNSET

    @property
    def disabled_since_ms(self) -> int | None:
        """Since when it may do nothing, whatever its rules say, in milliseconds since 1970; None if it is enabled."""
        return None if self.disabled_ms is UNSET else self.disabled_ms

    @property
    def is_disabled(self) -> bool:
        """Whether it may do nothing until it is enabled again."""
        return self.disabled_ms is not UNSET


def check_principal(name: str) -> str:
    """Return `name` if it is a legal name of a principal, else raise `Refused`."""
    if _NAME.fullmatch(name) is None or name in (".", ".."):
        raise Refused(
            f"principal must be 1 to {PRINCIPAL_LENGTH_MAX} characters of A-Z a-z 0-9 . _ @ : + | -, not '.' or '..'",
            code="invalid_principal_name",
            field="principal",
            extra={"limit": PRINCIPAL_LENGTH_MAX},
        )
    return name


def is_group(name: str) -> bool:
    """Whether this is a group: rules name it, tokens say which principals are in it, and it calls nothing itself."""
    return name.startswith(GROUP_PREFIX)


def check_caller(name: str) -> str:
    """Return `name` if it may be that of somebody who calls: a legal name, and no group."""
    check_principal(name)
    if is_group(name):
        detail = (
            f"principal: {name} is a group, which rules may name, but which calls nothing itself: it has no keys and"
            " no quota of its own, and cannot be disabled"
        )
        raise Unprocessable(detail, field="principal")
    return name


def check_note(note: str) -> str:
    """Return `note` if it may be stored, else raise `Unprocessable`."""
    if len(note) > NOTE_LENGTH_MAX or not note.isprintable():
        detail = f"note must be at most {NOTE_LENGTH_MAX} printable characters"
        raise Unprocessable(detail, field="note", extra={"limit": NOTE_LENGTH_MAX})
    return note
