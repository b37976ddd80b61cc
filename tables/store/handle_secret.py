"""The secret that signs handles: the operator's, or one that the warehouse stores (see `mq.queue.handle`).

The first process that needs the warehouse's secret creates it: put-if-absent decides, and the others read it.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final

import msgspec

from deltamq.mq.errors import Refused, Unavailable, Unknown
from deltamq.mq.queue.handle import HandleKeys
from deltamq.mq.stored_json import corrupt_when_damaged, to_json
from deltamq.tables.store.store import FileMissing, Store

_KEY: Final = "sys/handle_keys/0.json"
_SECRET_BYTES: Final = 32
_CONFIGURED_BYTES_MIN: Final = 16
#: Key ids, which handles carry: a service that was given a secret refuses handles signed with the stored one.
_STORED_ID: Final = 0
_CONFIGURED_ID: Final = 1


class _Stored(msgspec.Struct):
    """The warehouse's secret, in hexadecimal digits."""

    secret: str


_decode: Final = msgspec.json.Decoder(_Stored).decode


def handle_keys(store: Store, configured: str = "") -> HandleKeys:
    """Return the keys with which every process of the warehouse signs and verifies handles; blocking.

    Parameters
    ----------
    configured
        The operator's secret in hexadecimal digits; empty for the warehouse's own secret.

    Raises
    ------
    Refused
        `config_invalid`: `configured` is too short or not hexadecimal. The message does not repeat it.
    Corrupt
        `handle_keys_corrupt`: the stored secret is damaged. After its file is removed, a new secret is made, and all
        earlier handles are void: their messages are delivered again.
    """
    if configured:
        return HandleKeys(current=_CONFIGURED_ID, secrets={_CONFIGURED_ID: _parsed(configured)})
    stored = _read(store)
    if stored is None:
        made = to_json(_Stored(secrets.token_hex(_SECRET_BYTES)))
        # Whether this put or another process's was stored is seen by reading the key back.
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
            raise ValueError("the secret has the wrong length")
    return secret
