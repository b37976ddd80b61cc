"""The `deltamq` command line: one module for each command, loaded when the command is run."""

from __future__ import annotations

from deltamq.mq.client.cli.doctor import Check, CheckOutcome, Subject
from deltamq.mq.client.cli.root import main

__all__ = ["Check", "CheckOutcome", "Subject", "main"]
