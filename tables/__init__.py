"""Delta tables as a message log: names to folders, the append, the reader, upkeep and verification.

Message tables are committed by this package alone (ARCHITECTURE I3); everything above it, service and Spark jobs
alike, appends through `tables.log.warehouse.Warehouse`.
"""
