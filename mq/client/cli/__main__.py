"""`python -m deltamq.mq.client.cli` runs `deltamq`."""

from __future__ import annotations

from deltamq.mq.client.cli.root import main

main()
