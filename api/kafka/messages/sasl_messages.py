"""SaslHandshake and SaslAuthenticate: who the client is."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from deltamq.api.kafka.messages.codec import At, Bytes, Int16, Int64, Message, NullableString, String


class SaslHandshakeRequest(Message):
    mechanism: String


class SaslHandshakeResponse(Message):
    error_code: Int16
    mechanisms: list[String] = field(default_factory=list)


class SaslAuthenticateRequest(Message):
    auth_bytes: Bytes


class SaslAuthenticateResponse(Message, kw_only=True):
    error_code: Int16
    error_message: NullableString = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, At(1)] = 0
