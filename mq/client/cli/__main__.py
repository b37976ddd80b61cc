"""`python -m mq.client.cli` runs `deltamq`."""

from __future__ import annotations

from mq.client.cli import main

main()
