"""The job that merges the queue's own logs into state tables."""
