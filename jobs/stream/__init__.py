"""Topics as streams: the source and the sink of `format("mq")`."""
