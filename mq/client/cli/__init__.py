"""The `deltamq` command line; a command is loaded when it is run."""

from __future__ import annotations
