"""A folder on the path of Spark's Python workers: Python imports `sitecustomize` from it when such a process starts."""
