"""What the log costs in process and on disk."""
