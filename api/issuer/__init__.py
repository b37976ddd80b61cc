"""Tokens of an identity provider: its keys, fetched and kept, and what they say of a token (SPEC SEC-15, SEC-16).

A process without an issuer in its settings does not import this room, which takes a quarter of a second.
"""

from __future__ import annotations
