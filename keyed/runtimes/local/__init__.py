"""The local runtime: keyed functions in this process, without Spark or Java, for tests and small jobs.

- `local_query`: batches from the source to sinks and commits. `local_operator`: an operator's key groups.
- `source`: iterables, DataFrames and tables, checked and cut into batches. `local_position`: the position in them.
- `local_rows`: good rows, emitted rows, and their writing to sinks. `table_rows`: rows as tables.
"""
