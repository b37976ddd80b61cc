"""Who may do what: keys, principals, access rules, and what these allow (SPEC SEC)."""

from __future__ import annotations

from deltamq.mq.auth.changes import (
    decide_disable_principal,
    decide_enable_principal,
    decide_first_administrator,
    decide_put_key,
    decide_put_principal,
    decide_put_quota,
    decide_put_rule,
    decide_remove_principal,
    decide_remove_rule,
    decide_revoke_key,
)
from deltamq.mq.auth.claims import credential_of
from deltamq.mq.auth.credential import Credential
from deltamq.mq.auth.decisions import Decisions
from deltamq.mq.auth.key import Key, is_right, key_id_of, new_key
from deltamq.mq.auth.principal import PRINCIPAL_PATTERN, Principal, check_caller, check_principal, is_group
from deltamq.mq.auth.quota import Bucket, Quota, quota_of
from deltamq.mq.auth.rule import CLUSTER, AccessRule, Effect, Resource, Verb, rule_of
from deltamq.mq.auth.scram import SCRAM_HASHES, SCRAM_ITERATIONS, Scram, is_proof, salt_of, signature_of
from deltamq.mq.auth.state import AUTH_EVENTS, AuthEvent, AuthState

__all__ = [
    "AUTH_EVENTS",
    "CLUSTER",
    "PRINCIPAL_PATTERN",
    "SCRAM_HASHES",
    "SCRAM_ITERATIONS",
    "AccessRule",
    "AuthEvent",
    "AuthState",
    "Bucket",
    "Credential",
    "Decisions",
    "Effect",
    "Key",
    "Principal",
    "Quota",
    "Resource",
    "Scram",
    "Verb",
    "check_caller",
    "check_principal",
    "credential_of",
    "decide_disable_principal",
    "decide_enable_principal",
    "decide_first_administrator",
    "decide_put_key",
    "decide_put_principal",
    "decide_put_quota",
    "decide_put_rule",
    "decide_remove_principal",
    "decide_remove_rule",
    "decide_revoke_key",
    "is_group",
    "is_proof",
    "is_right",
    "key_id_of",
    "new_key",
    "quota_of",
    "rule_of",
    "salt_of",
    "signature_of",
]
