"""The POP consumer: pops, handlers, acknowledgements."""

from __future__ import annotations
