"""The declared job. Nothing in here runs.

- `streams`: the chain of a job, and the calls that run it. `graph`: its nodes. `operators`: operators, with their
  `options`. `transforms`: steps without state. `chaining`: operators without a shuffle between them.
- `functions`: keyed functions, with their `context`. `vectorized_functions`: those over whole columns.
  `execution_path`: the choice between them. `inference`: output types from annotations. `outputs`: side outputs.
  `lost_changes`: changes of values that are no state.
- `state`: declared states. `table_declaration`: tables. `ttl`: time to live. `broadcast`: broadcast state.
  `global_tables`: versions of tables in it. `watermarks`: event time.
- `restoring`: what state comes from. `results`: queries and their progress. `explanation`: plans as text.
  `metrics_exports`: exports of metrics.
"""
