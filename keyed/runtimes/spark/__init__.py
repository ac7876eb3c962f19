"""Runs keyed functions on Spark Structured Streaming.

- `plan`: the DataFrame of a chain. `worker`: the code in Spark's tasks. `query`: a query from its start to its end.
- `checkpoint`: what keyed reads and writes in a checkpoint. `session`: the Spark session.
- `kafka_frames`: Kafka's topics as DataFrames.
"""
