"""Destinations of outputs: one protocol, and a file for each. Both runtimes write through it.

- `sink`: the protocol, and the query and the batch that a target records. `choose`: the sink of an argument.
- `function`, `kafka`, `upsert_topic`, `parquet`, `delta_table`, `iceberg_table`: the sinks.
- `table_sink`: tables of a lakehouse, whatever their format. `table_writers`: their writers in both runtimes.
"""
