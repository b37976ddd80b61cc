"""The DeltaMQ service: topics, produce, fetch and health over HTTP.

It starts without Spark and meets the jobs only in the tables. `deltamq serve` runs `api.command:serve_command`.
"""

from __future__ import annotations

if __name__ != "deltamq.api":
    raise ImportError("import deltamq.api: the folder is a part of that package, and no package of its own")
