"""The second process: Spark reads what the tables hold, and knows nothing else."""
