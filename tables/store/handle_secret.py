"""The secret that signs handles: the operator's, or one that the warehouse keeps (see `mq.queue.handle`).

Made once, by whichever process comes first: put-if-absent decides, and the others read what it stored.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final

import msgspec

from mq.errors import Refused, Unavailable, Unknown
from mq.queue import HandleKeys
from mq.stored_json import corrupt_when_damaged, to_json
from tables.store.store import FileMissing, Store

__all__ = ["handle_keys"]

_KEY: Final = "sys/handle_keys/0.json"
_SECRET_BYTES: Final = 32
_CONFIGURED_BYTES_MIN: Final = 16
#: Key ids, which handles carry: a service whose operator gives it a secret does not take the handles of before.
_STORED_ID: Final = 0
_CONFIGURED_ID: Final = 1


class _Stored(msgspec.Struct):
    """The warehouse's secret, in hexadecimal digits."""

    secret: str


_decode: Final = msgspec.json.Decoder(_Stored).decode


def handle_keys(store: Store, configured: str = "") -> HandleKeys:
    """The keys by which every process of the warehouse makes and verifies handles; blocking.

    Parameters
    ----------
    configured
        Hexadecimal digits; empty for the warehouse's own secret.

    Raises
    ------
    Refused
        `config_invalid`: `configured` is too short or not hexadecimal. The text is not repeated.
    Corrupt
        `handle_keys_corrupt`: the stored secret is damaged. Removed, it is made anew, and the handles that were given
        out are void: their messages are delivered again.
    """
    if configured:
        return HandleKeys(current=_CONFIGURED_ID, secrets={_CONFIGURED_ID: _parsed(configured)})
    stored = _read(store)
    if stored is None:
        made = to_json(_Stored(secrets.token_hex(_SECRET_BYTES)))
        # Whether it was stored, and whose it is, is seen by reading it.
        with contextlib.suppress(Unknown):
            store.put_if_absent(_KEY, made, durable=True)
        stored = _read(store)
        if stored is None:
            raise Unavailable(f"{_KEY} cannot be stored")
    return HandleKeys(current=_STORED_ID, secrets={_STORED_ID: stored})


def _parsed(configured: str) -> bytes:
    try:
        secret = bytes.fromhex(configured)
    except ValueError:
        secret = b""
    if len(secret) < _CONFIGURED_BYTES_MIN:
        raise Refused(
            f"queue.handle_secret must be {2 * _CONFIGURED_BYTES_MIN} or more hexadecimal digits",
            code="config_invalid",
            field="queue.handle_secret",
        )
    return secret


def _read(store: Store) -> bytes | None:
    try:
        raw = store.read(_KEY).to_pybytes()
    except FileMissing:
        return None
    with corrupt_when_damaged(_KEY, code="handle_keys_corrupt"):
        secret = bytes.fromhex(_decode(raw).secret)
        if len(secret) != _SECRET_BYTES:
            raise ValueError("a secret of another length")
    return secret
