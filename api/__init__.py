"""The DeltaMQ service: topics, produce, fetch and health over HTTP.

It starts without Spark and meets the jobs only in the tables. `deltamq serve` runs `api.serve:serve_command`.
"""
