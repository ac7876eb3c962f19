"""A query on Spark: its start, its progress and its end."""
