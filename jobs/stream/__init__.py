"""Topics as streams: the source and the sink of `format("mq")`, and how far behind a query is (SPEC SPARK-2, 3, 12)."""
