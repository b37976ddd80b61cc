"""Limits of keys, principals and access rules, each with its unit and its reason.

All of it is in the metadata of every process, and in each snapshot.
"""

from __future__ import annotations

from typing import Final

PRINCIPAL_LENGTH_MAX: Final = 127
NOTE_LENGTH_MAX: Final = 256
PRINCIPALS_MAX: Final = 10_000
# A second key is there while callers change from the first to it.
KEYS_LIVE_MAX: Final = 2
# A principal's access is found in its own rules; more than this is a missing prefix pattern.
RULES_OF_PRINCIPAL_MAX: Final = 1_000
RULES_MAX: Final = 50_000

# Random bytes of a key's secret, and of its id, which only has to be unique.
SECRET_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
# As many characters of text as a secret of 128 random bits has in hexadecimal digits.
CLUSTER_SECRET_LENGTH_MIN: Final = 32
# As long as the SDK's longest token, with its scheme; a longer header is refused unread.
AUTHORIZATION_BYTES_MAX: Final = 16 * 1024 + 16

# How far the clocks of the identity provider and of a process may be apart.
TOKEN_SKEW_MS: Final = 60_000
# Providers leave groups out beyond a few hundred; all of these are compared with rules.
TOKEN_GROUPS_MAX: Final = 1_000
# The keys of a provider: most have two to ten, each of at most a few KiB.
JWKS_BYTES_MAX: Final = 256 * 1024
JWKS_KEYS_MAX: Final = 100
# A shorter key can be broken, a longer one makes each check slow.
RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
# Requests that may wait at once until the provider's keys were read; further ones are refused.
KEY_WAITERS_MAX: Final = 1_000

# A quota a second: an exabyte is no bound any more, and still a whole number in every language's JSON.
QUOTA_MAX: Final = 2**50
# Decisions that a process remembers; each is about 300 bytes. Of requests, only those with a short path are remembered:
# callers choose them. Of credentials, only valid ones are: a token has one to a few KiB.
DECISIONS_CACHED_MAX: Final = 50_000
REMEMBERED_BYTES_MAX: Final = 1_024
CREDENTIALS_BYTES_MAX: Final = 32 * 1024 * 1024

assert RULES_OF_PRINCIPAL_MAX <= RULES_MAX
