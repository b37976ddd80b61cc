"""Users: how they authenticate (SaslHandshake, SaslAuthenticate), and what administrators ask about them.

Administrators ask by which credentials users can authenticate, and how much they may send and read.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import field

from deltamq.api.kafka.messages.codec import (
    At,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    String,
)


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


#: Kafka's numbers for the mechanisms.
SCRAM_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class QuotaFilter(Message):
    entity_type: String
    match_type: Int8
    match: NullableString


class DescribeClientQuotasRequest(Message):
    components: list[QuotaFilter]
    strict: Bool


class QuotaEntity(Message):
    entity_type: String
    entity_name: NullableString


class QuotaValue(Message):
    key: String
    value: Float64


class DescribedQuota(Message):
    entity: list[QuotaEntity]
    values: list[QuotaValue]


class DescribeClientQuotasResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    entries: list[DescribedQuota] | None


class QuotaChange(Message):
    key: String
    value: Float64
    remove: Bool


class AlteringQuota(Message):
    entity: list[QuotaEntity]
    changes: list[QuotaChange]


class AlterClientQuotasRequest(Message):
    entries: list[AlteringQuota]
    validate_only: Bool


class AlteredQuota(Message):
    error_code: Int16
    error_message: NullableString
    entity: list[QuotaEntity]


class AlterClientQuotasResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    entries: list[AlteredQuota]


class UserName(Message):
    name: String


class DescribeUserScramCredentialsRequest(Message):
    users: list[UserName] | None


class UserCredential(Message):
    mechanism: Int8
    iterations: Int32


class DescribedUser(Message):
    user: String
    error_code: Int16
    error_message: NullableString
    credentials: list[UserCredential]


class DescribeUserScramCredentialsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    results: list[DescribedUser]


class CredentialDeletion(Message):
    name: String
    mechanism: Int8


class CredentialUpsertion(Message):
    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


class AlterUserScramCredentialsRequest(Message):
    deletions: list[CredentialDeletion]
    upsertions: list[CredentialUpsertion]


class AlteredUser(Message):
    user: String
    error_code: Int16
    error_message: NullableString


class AlterUserScramCredentialsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    results: list[AlteredUser]
