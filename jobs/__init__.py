"""The Spark side: session, data source, scheduled jobs.

This file imports nothing: `jobs.setup` runs before Spark is there.
"""
