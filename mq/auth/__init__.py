"""Who may do what: keys, principals, access rules, and what these allow (SPEC SEC)."""

from __future__ import annotations
