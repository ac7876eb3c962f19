"""Destinations of outputs: one protocol, and a file for each. Both runtimes write through it.

- `sink`: the protocol, and the query and the batch that a target records.
- `function`, `kafka`, `upsert_topic`, `parquet`, `delta_table`, `iceberg_table`: the sinks. `function` also has the one
  for an argument. That of PostgreSQL, on public names only, is *keyed/postgres.py*.
- `table_sink`: tables of a lakehouse, whatever their format, and their writers in both runtimes.
"""
