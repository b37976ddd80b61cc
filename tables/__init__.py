"""Delta tables as a message log: folders, append, reader, upkeep and verification.

Only this package commits to message tables (ARCHITECTURE I3); the service and the Spark jobs append through
`tables.log.warehouse.Warehouse`.
"""

from __future__ import annotations

if __name__ != "deltamq.tables":
    raise ImportError("import deltamq.tables: the folder is a part of that package, and no package of its own")
