"""What this process hosts: roles and leases, peers, topics and groups as the metadata log says, fences."""

from __future__ import annotations
