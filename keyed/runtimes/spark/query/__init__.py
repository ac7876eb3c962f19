"""A query on Spark: its start, its progress and its end.

- `spark_query`: runs or starts a chain. `job`: a checked chain, run once over a batch DataFrame. `stream_job`: one
  over a stream, with its checkpoint and background work.
- `spark_sinks`: the outputs of a batch to sinks. `exports`: to changelogs, and counters.
- `failures`: Spark's errors as those of the worker.
"""
