"""Answers of servers of others: bounded in time and size, without redirects, so that no other server is asked."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from deltamq.mq.request_values import is_loopback
from deltamq.tables.config import ConfigInvalid


def trusting(ca: str, field: str) -> ssl.SSLContext:
    """Return the TLS of calls to a server that authorities in a file sign, or the system's without one.

    Raises
    ------
    ConfigInvalid
        The file, which the setting `field` names, is not right.
    """
    try:
        tls = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        detail = f"{field}: {ca} is no readable file of certificates in PEM: {error}"
        raise ConfigInvalid(detail, field=field) from error
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    return tls


class Answered(NamedTuple):
    """The status and the body of an answer; of a body that is too long, its beginning, longer than allowed."""

    status: int
    body: bytes


async def fetched(
    url: str,
    tls: ssl.SSLContext,
    *,
    bytes_max: int,
    headers: Mapping[str, str],
    auth: httpx.Auth | None = None,
) -> Answered:
    """GET a URL; the caller bounds the time.

    Raises
    ------
    httpx.HTTPError, httpx.InvalidURL, OSError
        There was no answer.
    """
    # A proxy of the environment leads outwards, not to this machine.
    through_proxy = not is_loopback(urlsplit(url).hostname or "")
    async with (
        httpx.AsyncClient(
            verify=tls, auth=auth, trust_env=through_proxy, follow_redirects=False, timeout=None
        ) as client,
        client.stream("GET", url, headers={**headers, "Accept-Encoding": "identity"}) as answer,
    ):
        body = b""
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > bytes_max:
                break
        return Answered(answer.status_code, body)
