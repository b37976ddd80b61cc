"""What Spark's readers, streams and jobs cost."""
