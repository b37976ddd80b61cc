"""Delta tables as a message log: folders, append, reader, upkeep and verification.

Only this package commits to message tables (ARCHITECTURE I3); the service and the Spark jobs append through
`tables.log.warehouse.Warehouse`.
"""
