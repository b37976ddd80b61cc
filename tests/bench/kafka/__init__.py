"""The Kafka door, beside Kafka."""
