"""One key group's work: state overlay, timers, driver, commit. Pure Python; clock, store and log are parameters.

- `key_group`: a batch from catching up to its commit. `batch`: its input, with all rows in one order, the
  watermark over several sources and partitions, and its result. `held_rows`: rows that wait for the watermark.
- `group_log`: the truth: rows, meta record, counters, cleaning. `replica`: the local store, which follows the log,
  and the loader of both from a changelog or other groups. `migrate`: declared changes of states. `export`: the last
  commit to the changelog. `initial`: initial entries, and versions of global tables.
- `work`: a function's batch, by rows or as a table. `driver`: rows and timers in their order.
  `broadcasting`: broadcast elements before them. `timers`: the timers of a time domain. `changes`: the changes of the
  batch. `key_checks`: checks of keys.
- `registry`: the states of a function, `bound` to the key group and to a scope, the current key and clocks, which all
  of these share: `bound_values`, `bound_lists`, `bound_maps`, `bound_versions`, `bound_tables`. `emitted_values`:
  values that a function and the engine do not share. `engine_context`: the context of a function.
"""
