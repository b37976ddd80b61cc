"""The composition root: one `Service` makes and holds all parts of a service process; calls are given it."""

from __future__ import annotations
