"""Topics as streams: `readStream.format("mq")` and how far behind a query is (SPEC SPARK-2, SPARK-12)."""
