"""One partition as a log (append, read, roll-up, fences), and the warehouse that holds all partitions."""

from __future__ import annotations
