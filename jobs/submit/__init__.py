"""What `spark-submit` is given."""

from __future__ import annotations
