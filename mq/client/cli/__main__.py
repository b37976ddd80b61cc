"""`python -m mq.client.cli` is `deltamq`."""

from __future__ import annotations

from mq.client.cli import main

main()
