"""One key group's work: state overlay, timers, driver, commit. Pure Python; clock, store and log are parameters.

- `key_group`: a batch from catching up to its commit. `batch`: its input and its result.
- `channels`: the watermark over several sources and partitions. `merged_chunks`: their rows in one order. `held_rows`:
  rows that wait for the watermark.
- `group_log`: the truth. `segment`: the log rows of a commit. `meta`: the meta record, with the `counters`. `cleaning`:
  keeps the log bounded. `replica`: the local store, which follows the log. `loader`: loads both from a changelog or
  other groups. `migrate`: declared changes of states. `export`: the last commit to the changelog. `initial`: initial
  entries, from `initial_rows`, as `declared_values`.
- `ingestion`: timestamps of rows with the time of their batch.
- `work`, `vectorized_work`: a function's batch, by rows or as a table. `driver`: rows and timers in their order.
  `broadcasting`: broadcast elements before them, including `table_versions`. `return_values`: checks of the results of
  calls. `timers`: the timers of a time domain. `changes`: the changes of the batch. `keytypes`: checks of keys.
  `forwarded`: checks of the rows of a chained operator.
- `registry`: the states of a function, `bound` to the key group: `bound_values`, `bound_lists`, `bound_maps`,
  `bound_versions`, `bound_tables`, `bound_broadcast`. `isolation`, `output_copies`: values that a function and the
  engine do not share.
- `engine_context`: the context of a function. `scope`: the current key and clocks, which all of these share.
"""
