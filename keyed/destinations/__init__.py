"""Destinations of outputs: one protocol, and a file for each. Both runtimes write through it.

- `sink`: the protocol. `ownership`: the query and the batch that a target records. `choose`: the sink of an argument.
- `function`, `kafka`, `upsert_topic`, `parquet`, `delta_table`, `iceberg_table`: the sinks.
- `parquet_folder`: who may write to a folder. `parquet_on_spark`: its files, written by Spark's tasks.
- `table_sink`: tables of a lakehouse, whatever their format. `table_writer`, `table_on_spark`: their writers.
"""
