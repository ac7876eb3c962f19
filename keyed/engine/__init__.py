"""One key group's work: state overlay, timers, driver, commit. Pure Python; clock, store and log are parameters.

- `key_group`: a batch from catching up to its commit. `batch`: what goes in, and what comes out.
- `channels`: the watermark over several sources and partitions. `merged_chunks`: their rows in one order.
- `group_log`: the truth. `segment`: what a commit appends to it. `meta`: its meta record, with the `counters`.
  `cleaning`: keeps it bounded. `replica`: the local store, kept level with it. `loader`: fills both from elsewhere.
  `export`: the last commit to the changelog. `initial`: entries to start with, out of `initial_rows`, as
  `declared_values`.
- `ingestion`: timestamps of rows that have the time of their batch.
- `work`, `vectorized_work`: a function's batch, by rows or as a table. `driver`: rows and timers in their order.
  `broadcasting`: broadcast elements before them, `table_versions` among them. `return_values`: what calls may return.
  `timers`: the timers of a time domain. `changes`: what the batch changed. `keytypes`: which keys are refused.
  `forwarded`: which rows of a chained operator are.
- `registry`: the states of a function, `bound` to the key group: `bound_values`, `bound_lists`, `bound_maps`,
  `bound_versions`, `bound_tables`, `bound_broadcast`. `isolation`, `output_copies`: values that a function and the
  engine do not share.
- `engine_context`: the context that a function sees. `scope`: the current key and clocks, which all of them share.
"""
