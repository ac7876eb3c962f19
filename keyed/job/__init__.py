"""The declared job. Nothing in here runs.

- `streams`: the chain of a job, and the calls that run it. `graph`: its nodes, with steps without state.
  `options`: those of runs and operators. `chaining`: operators without a shuffle between them.
- `functions`: keyed functions, over rows and over whole columns, their output types from annotations, and the operators
  made of them. `context`: their contexts, timers, side outputs, broadcast state. `execution_path`: the choice between
  rows and columns. `lost_changes`: changes of values that are no state.
- `state`: declared states. `table_declaration`: tables. `ttl`: time to live.
  `global_tables`: versions of tables in broadcast state. `watermarks`: event time.
- `restoring`: what state comes from. `results`: queries and their progress. `explanation`: plans as text.
"""
