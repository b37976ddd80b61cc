"""The Spark side: session, data source, scheduled jobs.

This file imports nothing: `jobs.setup` runs before Spark is there.
"""

from __future__ import annotations

if __name__ != "deltamq.jobs":
    raise ImportError("import deltamq.jobs: the folder is a part of that package, and no package of its own")
