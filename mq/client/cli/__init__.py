"""The `deltamq` command line: one module for each command, loaded when the command is run."""

from __future__ import annotations
