"""The transactional outbox: messages written in the caller's database transaction, and the relay that sends them."""

from __future__ import annotations
