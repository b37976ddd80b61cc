"""The test suites of Kafka's clients, played against a real service."""
