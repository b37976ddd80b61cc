"""Storage of tables: a local disk or an object store behind one interface, with file reuse, trash and host locks."""

from __future__ import annotations
