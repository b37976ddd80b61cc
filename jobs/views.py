"""The earlier place of `register_views`, which is in `jobs.sql` now; this name goes with the next release."""

from __future__ import annotations
