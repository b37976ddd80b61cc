"""Kafka's protocol in front of the same partitions (SPEC KAFKA)."""
